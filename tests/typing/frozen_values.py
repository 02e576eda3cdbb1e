"""Assignments to fields of `@frozen` dataclasses, which type checkers must reject (ADR 62)."""

from dataclasses import replace

from flujo_client.contract.envelope import Envelope
from flujo_worker.ports import Claim


def changed(envelope: Envelope, claim: Claim) -> Envelope:
    envelope.number = 2  # wrong: misc
    claim.fence = 2  # wrong: misc
    return replace(envelope, number=2)
