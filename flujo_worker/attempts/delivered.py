"""What became of a delivery: a value that crosses from a process that ran an attempt apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flujo_worker.ports import Refusal, Verdict

Disposition = Literal["parked", "cancelled", "waiting", "crashed", "unreadable"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a delivery. `counts`: it is its chord's part. `in_company`: how often a suspect was lost so."""

    disposition: Verdict | Refusal | Disposition
    counts: bool = False
    in_company: int = 0
