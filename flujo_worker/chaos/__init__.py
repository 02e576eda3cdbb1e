"""`flujo chaos`: a monkey that breaks what real workers run on, and invariants that are read from Postgres at the end.

`monkey.py` runs a storm and a quiet time: `traffic.py` enqueues the pipelines of `pipelines.py`, `faults.py` draws faults from a seed.
Steps leave their effects in `ledger.py`, `invariants.py` judges, `report.py` shows. `site.py` is what all of it happens to.
"""
