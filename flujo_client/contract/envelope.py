"""The attempt's message, with all it needs to run; and the join signal, which names the fan-out to join: ids only, as every branch carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, Literal

from flujo_client.address import ROOT, AttemptKey
from flujo_client.errors import SerializationError
from flujo_client.frozen import frozen
from flujo_client.serial import Packed

WIRE_VERSION = 1
TASK_ATTEMPT = "flujo.attempt"
TASK_START = "flujo.start"
TASK_JOIN = "flujo.join"
TASK_RESUME = "flujo.resume"
TASK_SWEEP = "flujo.sweep"
TASK_HEALTH_CHECK = "flujo.health_check"
TASK_RUN = "flujo.run"
"""Starts a run for a signature in your canvas. Unlike the others it travels in your app's serializer."""
ATTEMPTS_QUEUE = "flujo.attempts"
CONTROL_QUEUE = "flujo.control"

AttemptKind = Literal["step", "start", "join", "resume"]
TASKS: dict[AttemptKind, str] = {"step": TASK_ATTEMPT, "start": TASK_START, "join": TASK_JOIN, "resume": TASK_RESUME}
"""The task that carries each kind of work. Names are few and constant: an unknown one in a header hangs its chord."""


_OWN: Final = ("kind", "address", "step", "number", "version", "queue", "guidance")
"""The fields of `Envelope` that a message contains under the same name."""
_OF_RUN: Final = {"run_queue": "queue"} | {
    name: name for name in ("run", "reference", "fingerprint", "priority", "deadline", "trace_parent", "tenant", "root")
}
"""The keys of a message that describe its run, each with the field of `RunHeader`."""
_TABLES: Final = ("aros", "settings", "limits")


@frozen
class RunHeader:
    """The common part of all messages of a run."""

    run: str
    reference: str
    """The place where workers find the pipeline, `module:attribute`."""
    fingerprint: str
    """The fingerprint of the run's plan; a worker whose code has another plan parks the run."""
    queue: str = ATTEMPTS_QUEUE
    priority: int | None = None
    deadline: float | None = None
    """Unix seconds after which no attempt of the run begins."""
    trace_parent: str | None = None
    """A W3C trace context, carried for exporters."""
    tenant: str = ""
    root: str = ROOT
    """The place in the plan where the run begins; for a child run the body of its import."""
    aros: Mapping[str, Any] | None = None
    """The project's `[aros]` table as it was when the run was enqueued, so that no worker's own file counts; None if the project has
    no such table."""
    settings: Mapping[str, Any] | None = None
    """Likewise the project's settings that can change the run, as `flujo_client.config.run_settings` writes them; None if the client
    does not send them."""
    limits: Mapping[str, Any] | None = None
    """The budgets that the run's attempts must reserve from, as in `flujo_client.pipeline.limits`; None if they have no limits."""
    is_gated: bool = False
    """The run has passed gates, so its end admits another run."""


@frozen
class Envelope:
    """One attempt's message."""

    ticket: RunHeader
    address: str
    """The scope that the attempt owns while it runs."""
    step: str
    number: int
    version: int
    """The scope's version of which `context` is a snapshot; checked again in the merge. Above 0 once something was merged into it."""
    input: Packed
    context: Packed | None = None
    """The context; None if the run has none, a reference if it is above the inline limit."""
    guidance: str | None = None
    """The reason why the previous attempt failed."""
    queue: str = ATTEMPTS_QUEUE
    kind: AttemptKind = "step"
    """A try at a step; the start of a scope that begins with a container; the join of a fan-out; or continuing with a person's answer."""
    lanes: Mapping[str, int] = field(default_factory=dict)
    """The fan-outs this work is in, outermost first, each with the lane it runs in: its part in their chords is derived from them.
    `NO_LANE`: the work paused and a sibling runs in its lane, so the work is no longer part of that chord."""
    code: tuple[str, ...] = ()
    """The versions of code that its conversation has used so far (`flujo_client/contract/code.py`)."""
    units_from: int | None = None
    """The number of the attempt at the same step whose units it shares, if it is durable; None: it begins with none."""
    pauses: int = 0
    """How many attempts before it have ended with a question to a person, or to wait without a worker: they are no tries."""
    _key: str = field(default="", init=False, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Return the attempt's key, which is also its Celery task id."""
        if not self._key:  # written once: it is asked for a dozen times
            key = str(AttemptKey(self.ticket.run, self.address, self.step, self.number, self.kind))
            object.__setattr__(self, "_key", key)
        return self._key

    @property
    def tries(self) -> int:
        """Return which try at the step it is, from 1: to wait is none."""
        return self.number - self.pauses

    @property
    def begins_run(self) -> bool:
        """Return whether it is the first work of its run, of any kind; after a loss it is so again."""
        is_first = (self.address, self.number) == (self.ticket.root, 1) and self.version <= 0
        return is_first and self.kind in ("step", "start")

    @property
    def references(self) -> tuple[Packed, ...]:
        """Return what the envelope only points at, and a worker must fetch by digest."""
        return tuple(packed for packed in (self.input, self.context) if packed is not None and packed.is_reference)

    def inline(self, found: Mapping[str, Packed]) -> Envelope:
        """Replace the references by what they point at. `found` maps digests to values; raises KeyError if one is missing."""
        context = self.context
        return replace(
            self,
            input=found[self.input.digest] if self.input.is_reference else self.input,
            context=found[context.digest] if context is not None and context.is_reference else context,
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the envelope as plain data for the message."""
        ticket = self.ticket
        return {
            "v": WIRE_VERSION,
            "task": TASKS[self.kind],
            "key": self.key,
            **{name: getattr(self, name) for name in _OWN},
            **{name: getattr(ticket, attribute) for name, attribute in _OF_RUN.items()},
            **{name: None if (table := getattr(ticket, name)) is None else dict(table) for name in _TABLES},
            "input": self.input.to_wire(),
            "context": None if self.context is None else self.context.to_wire(),
            "lanes": dict(self.lanes),
            **({"code": list(self.code)} if self.code else {}),
            **({} if self.units_from is None else {"units_from": self.units_from}),
            **({"pauses": self.pauses} if self.pauses else {}),
            **({"gated": True} if ticket.is_gated else {}),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Envelope:
        """Read an envelope. Raises SerializationError: it is not one, is one of another version, or its key does not fit its fields."""
        try:
            if wire["v"] != WIRE_VERSION:
                message = f"an envelope of version {wire['v']}; this worker reads {WIRE_VERSION}"
                raise SerializationError(message, suggestion="upgrade the workers before the clients")
            of_run: dict[str, Any] = {attribute: wire[name] for name, attribute in _OF_RUN.items()}
            of_run |= {name: wire.get(name) for name in _TABLES}
            ticket = RunHeader(**of_run, is_gated=wire.get("gated") is True)
            envelope = cls(
                ticket=ticket,
                **{name: wire[name] for name in _OWN},
                input=Packed.from_wire(wire["input"]),
                context=None if wire["context"] is None else Packed.from_wire(wire["context"]),
                lanes=wire["lanes"],
                code=tuple(wire.get("code", ())),
                units_from=wire.get("units_from"),
                pauses=wire.get("pauses", 0),
            )
        except (KeyError, TypeError) as error:
            raise SerializationError(f"not an envelope: {type(error).__name__} {error}", path="message") from error
        texts = [ticket.run, ticket.reference, ticket.fingerprint, envelope.address, envelope.step, envelope.queue]
        counts: list[Any] = [envelope.number, envelope.version, envelope.pauses]
        counts += [] if envelope.units_from is None else [envelope.units_from]
        counts += envelope.lanes.values() if isinstance(envelope.lanes, dict) else [envelope.lanes]
        if {*map(type, [*texts, *envelope.code])} != {str} or {*map(type, counts)} != {int}:
            message = "not an envelope: a name is not a text or a number is not an integer"
            raise SerializationError(message, path="message")
        if wire.get("key") != envelope.key or TASKS.get(envelope.kind, ...) != wire.get("task"):
            raise SerializationError("it names the key or task of another message", path="message")
        return envelope


@frozen
class JoinSignal:
    """The signal for one fan-out; it may be sent any number of times."""

    run: str
    address: str

    @property
    def step(self) -> str:
        """Return the name of the fan-out's node."""
        return self.address.rpartition("/")[2]

    @property
    def key(self) -> str:
        """Return the key of the join's work, which is also the signal's Celery task id."""
        return str(AttemptKey(self.run, self.address, self.step, 1, "join"))

    def to_wire(self) -> dict[str, Any]:
        """Return the join signal as plain data. It repeats task and key, for the headers that name them are not signed."""
        return {"v": WIRE_VERSION, "task": TASK_JOIN, "key": self.key}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> JoinSignal:
        """Read a join signal from a message. Raises SerializationError: it is not a join signal, or is one of another version."""
        try:
            version, task, key = wire["v"], wire["task"], wire["key"]
            named = AttemptKey.parse(key)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SerializationError(f"not a join signal: {type(error).__name__} {error}", path="message") from error
        if version != WIRE_VERSION:
            message = f"a join signal of version {version}; this worker reads {WIRE_VERSION}"
            raise SerializationError(message, suggestion="upgrade the workers before the clients")
        join_signal = cls(named.run, named.address)
        if (task, key) != (TASK_JOIN, join_signal.key):
            raise SerializationError("it names a key or task that does not belong to a join", path="message")
        return join_signal
