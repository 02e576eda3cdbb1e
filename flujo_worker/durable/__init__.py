"""Durable agents: each model request, tool call and durable operation of an attempt is a unit on record.

    asked → named → on record? answer : announced → performed → settled → answer

`journal.py` has one claim's units, `context_writes.py` what tools write into the pipeline's context, `beside.py` the tools of a turn, `ledger.py` is the way
to the store. What pydantic-ai calls is `agents/durability.py`.
"""
