"""Durable agents: each model request, tool call and durable operation of an attempt is a unit on record.

    asked → named → on record? answer : announced → performed → settled → answer

`journal.py` performs the calls of one claim: `names.py` says what a call is and names it, `record.py` has what was there before, how much may be,
and what it costs, `context_writes.py` what tools write into the pipeline's context; `ledger.py` is the way to the store. What pydantic-ai calls is
`agents/durability.py`.
"""
