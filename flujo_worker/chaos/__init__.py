"""`flujo chaos`: inject faults into the services and processes of real workers, and check invariants in Postgres at the end.

`monkey.py` runs a storm and a quiet time: `traffic.py` enqueues the pipelines of `pipelines.py`, `faults.py` draws faults from a seed.
Steps record their effects in `ledger.py`, `invariants.py` judges, `report.py` shows. `site.py` has the services and workers.
"""
