"""The result of an attempt, as a value that serialises.

Exceptions become outcomes in the worker's `runtime/faults.py` and exceptions again in `flujo_client/contract/results.py`;
nothing expected is raised in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from flujo_client.contract.code import CodeMark
from flujo_client.errors import PricingNotConfiguredError
from flujo_client.frozen import frozen
from flujo_client.serial import Packed, storable_text
from flujo_client.sizes import MAX_ERROR_DETAILS, MAX_ERROR_TEXT, MAX_ERROR_WORD, MAX_TRACEBACK_BYTES

CONTROL_FLOW = "control_flow"
OWN_TIMEOUT: Final = "raised by the step's own code, without a message"
"""The message of a TimeoutError that user code has raised without one."""
OutcomeKind = Literal["success", "failure", "aborted", "lost", "cancelled", "limit"]


_TEXTS = {
    **dict.fromkeys(("category", "type_name", "module", "code", "traceback_digest"), MAX_ERROR_WORD),
    **dict.fromkeys(("message", "feedback", "guidance", "suggestion"), MAX_ERROR_TEXT),
    "traceback": MAX_TRACEBACK_BYTES,
}
"""Each text of a fault, with the characters that it may have."""
_NUMBERS = frozenset({"timeout_s", "waited_s", "status", "line", "more", "limit", "spent", "asked", "reserved"})
"""The details that are numbers."""
_GREATEST = 1e15


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of an attempt, as data with the original class, message and code."""

    category: str
    type_name: str
    message: str
    feedback: str
    """The feedback in the step's result."""
    module: str = ""
    code: str = ""
    suggestion: str | None = None
    guidance: str | None = None
    """The feedback on the answer in the next attempt's prompt; None for an error that does not judge an answer, such as an outage."""
    retryable: bool = False
    retry_after_s: float | None = None
    is_requested: bool = False
    """Whether the step's own code asks for the retry, after `retry_after_s` seconds and whatever the step's number of attempts."""
    keeps_units: bool = False
    """Whether a durable step goes on at the call that failed: the answers before it are not to blame."""
    traceback_digest: str = ""
    question: Mapping[str, Any] | None = None
    """After a pause in the middle of a call, what the calls ask: they get the answer. Else the answer is the step's output."""
    traceback: str = ""
    """The user's part of the traceback; empty if no user code took part, and in rows of older versions."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the error, such as a provider's HTTP status: names and plain values, a few of each code. Rows of older versions have none."""
    key: str = ""
    """The key of the attempt that failed with it; empty if none did, and in rows of older versions."""
    raised: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception itself, if it was raised in this process and is still referenced. It is never sent."""

    def __post_init__(self) -> None:
        """Shorten each text, so that any error can be stored and read back whole."""
        for name, most in _TEXTS.items():
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, storable_text(str(text), most=most))
        if not isinstance(self.details, Mapping):
            raise TypeError(f"has details that are a {type(self.details).__name__} instead of an object")
        if self.details:
            object.__setattr__(self, "details", _bounded(self.details))

    def to_tree(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "raised"}

    @property
    def stops_run(self) -> bool:
        """Return whether it passes through every container untouched: control flow, or strict costs without a price."""
        return self.category == CONTROL_FLOW or self.code == PricingNotConfiguredError.code

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Fault:
        """Read a fault back; keys of a newer version are ignored."""
        return cls(**{name: tree[name] for name in cls.__slots__ if name in tree})


def _bounded(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first details of an error as plain values; what ought to be a number and is none is left out, so that readers need not look."""
    some = islice(((name, _plain(each)) for name, each in details.items() if isinstance(name, str)), MAX_ERROR_DETAILS)
    return {
        storable_text(name, most=MAX_ERROR_WORD): each
        for name, each in some
        if name not in _NUMBERS or isinstance(each, (int, float))
    }


def _plain(value: Any) -> str | float | None:
    if value is None or (isinstance(value, (int, float)) and abs(value) <= _GREATEST):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - an error that cannot be printed must not replace what it reports
        text = "(cannot be shown)"
    return storable_text(text, most=MAX_ERROR_WORD)


@frozen
class Usage:
    """The spend of an attempt. Tokens are counts, `cost_usd` is in US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    cost_usd: float = 0.0
    model: str | None = None
    """The only model that was called for it; None for a sum, and if that is not known."""

    @property
    def is_nothing(self) -> bool:
        return not (self.input_tokens or self.output_tokens or self.requests or self.cost_usd)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.requests + other.requests,
            self.cost_usd + other.cost_usd,
        )


NO_USAGE = Usage()


@frozen
class Event:
    """One event of a run. `data` is plain JSON, safe for Postgres."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    level: str = "info"
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """One accepted repair, as the optional correction ledger stores it."""

    step_name: str
    agent_id: str | None
    provider_model: str | None
    schema_hash: str | None
    """SHA-256 of the schema's canonical JSON."""
    policy_version: str
    """The version of the rules that repaired it."""
    stage: str
    """The last stage that had to act."""
    repair_depth: int
    """The number of repairs."""
    transforms: tuple[str, ...]
    latency_ms_saved: float
    """Milliseconds that another try would have cost, estimated from this try."""


@frozen
class Outcome:
    """The result of one attempt."""

    kind: OutcomeKind
    output: Packed | None = None
    context: Packed | None = None
    """The context after a success; None when it is unchanged."""
    fault: Fault | None = None
    """The error, for every other kind."""
    usage: Usage = NO_USAGE
    latency_s: float = 0.0
    """Seconds from claim to outcome, by the worker's monotonic clock."""
    metadata: dict[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    corrections: tuple[Correction, ...] = ()
    """Entries for the correction ledger; empty unless the project has one."""
    answer: str | None = None
    """The model's answer, without secrets and of bounded length, if this failed because AROS refused it; None if the settings turn that off."""
    code: CodeMark | None = None
    """The version of the code that ran it; None if no code ran or its version is not known."""
