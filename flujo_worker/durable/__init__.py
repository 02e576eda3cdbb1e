"""Durable agents: each model request, tool call and durable operation of an attempt is a unit on record.

    asked → named → on record? answer : announced → performed → settled → answer

`call.py` says what a call is; `journal.py` performs those of one claim: `names.py` names them, `record.py` has what was there before, `payments.py` what
they cost, `bounds.py` how many there may be, `beside.py` which are under way, `context_writes.py` what tools write into the pipeline's context;
`ledger.py` is the way to the store. What pydantic-ai calls is `agents/durability.py`.
"""
