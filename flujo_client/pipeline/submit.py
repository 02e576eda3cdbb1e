"""From what a caller gives to what enqueue records. Pure: everything that can be refused is refused here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pydantic
from pydantic import BaseModel

from flujo_client import errors
from flujo_client.address import ROOT, is_run_id
from flujo_client.contract.admission import Gate
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.envelope import ATTEMPTS_QUEUE, CONTROL_QUEUE, Envelope, RunHeader
from flujo_client.contract.records import NewRun
from flujo_client.errors import ConfigurationError, SerializationError, SnapshotTooLarge
from flujo_client.plan.plan import Node, Plan
from flujo_client.schemas.fail_fast import places_of, refuse_costly
from flujo_client.schemas.parts import mappings_in
from flujo_client.serial import MAIN, Packed, Resolver, decode, digest, encode, importable, loads, stored
from flujo_client.sizes import MAX_METADATA_BYTES, MAX_REFERENCE, MAX_RUN_ID, MAX_WORD

if TYPE_CHECKING:
    from flujo_client.config.models import SizeLimits

PRIORITIES = range(10)
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
"""As in the W3C's "Trace Context": ids of only zeros, and the version ff, are invalid."""
LAST_DEADLINE = 253_402_300_799.0
"""The end of the year 9999, the last that Python's dates know; unix seconds."""


@dataclass(frozen=True, slots=True)
class Order:
    """The options of a run, apart from the pipeline and its input."""

    run_id: str
    context: Mapping[str, Any] | BaseModel | None = None
    context_model: type[BaseModel] | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    priority: int | None = None
    tenant: str = ""
    deadline: float | None = None
    limits: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace_parent: str | None = None
    aros: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    gates: tuple[Gate, ...] = ()
    key_marks: tuple[str, ...] = ()


def new_run(
    plan: Plan,
    reference: str,
    value: Any,
    order: Order,
    *,
    size: SizeLimits,
    allowed: Sequence[str],
    control_queue: str = CONTROL_QUEUE,
) -> NewRun:
    """Make the value that enqueue records; raises SerializationError, SnapshotTooLarge, PipelineContextInitializationError or ConfigurationError."""
    check_order(order)
    if len(reference) > MAX_REFERENCE:
        message = f"the pipeline's reference has {len(reference):,} characters; at most {MAX_REFERENCE:,} are allowed"
        raise ConfigurationError(message)
    tree = encode(value, path="input")
    if MAIN not in allowed and importable(MAIN) is None:
        _refuse_session_classes(tree)
    sent_input = pack(tree, "input", size)
    context = build_context(order.context, order.context_model)
    same = digest([reference, sent_input.digest, None if context is None else encode(context, path="context")])
    snapshot = _snapshot(context, value, order.run_id, size, allowed)
    ticket = RunHeader(
        run=order.run_id,
        reference=reference,
        fingerprint=plan.fingerprint,
        queue=order.queue or ATTEMPTS_QUEUE,
        priority=order.priority,
        deadline=order.deadline,
        trace_parent=order.trace_parent,
        tenant=order.tenant,
        aros=order.aros,
        settings=order.settings,
        limits=order.limits,
        is_gated=bool(order.gates),
    )
    node, inline = plan.nodes[0], size.snapshot_inline_bytes
    first, large = first_of(ticket, node, sent_input, snapshot, inline=inline, control_queue=control_queue)
    metadata = stored_metadata(order.metadata)
    return NewRun(first, plan, same, large, order.idempotency_key, metadata, order.gates, order.key_marks)


def first_of(
    ticket: RunHeader, node: Node, value: Packed, context: Packed | None, *, inline: int, control_queue: str
) -> tuple[Envelope, tuple[Packed, ...]]:
    """Make the first message of a run that begins at a top-level node, for a container one of the control queue, and give the values that it only points at."""
    is_performed = node.spec.performs
    first = Envelope(
        ticket=ticket,
        address=ROOT,
        step=node.name,
        number=1,
        version=0,
        input=by_reference(value, inline),
        context=None if context is None else by_reference(context, inline),
        queue=node.queue or ticket.queue if is_performed else control_queue,
        kind="step" if is_performed else "start",
    )
    return first, tuple(packed for packed in (value, context) if packed is not None and packed.size > inline)


def by_reference(packed: Packed, inline: int) -> Packed:
    """Return the value itself when it may travel inside a message, else a reference to it."""
    return packed if packed.is_reference or packed.size <= inline else packed.reference()


def build_context(context: Mapping[str, Any] | BaseModel | None, model: type[BaseModel] | None) -> BaseModel | None:
    """Make the run's context; None without data and a model."""
    if isinstance(context, BaseModel):
        if model is not None and not isinstance(context, model):
            message = f"the context is a {type(context).__name__}; the pipeline needs a {model.__name__}"
            raise errors.PipelineContextInitializationError(message)
        return context
    if context is None and model is None:
        return None
    if not isinstance(context, Mapping | None):
        raise errors.PipelineContextInitializationError(
            f"the context must be a mapping or a model, got a {type(context).__name__}"
        )
    kind, given = model or PipelineContext, dict(context or {})
    try:
        refuse_costly(kind, given)
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        problem = f"the context does not fit {kind.__name__}: {places_of(error, 'context')}"
        raise errors.PipelineContextInitializationError(problem, cause=error) from error


def _snapshot(
    context: BaseModel | None, value: Any, run_id: str, size: SizeLimits, allowed: Sequence[str]
) -> Packed | None:
    if context is None:
        return None
    if isinstance(context, PipelineContext):
        prompt = context.initial_prompt or (value if isinstance(value, str) else "")
        context = context.model_copy(update={"run_id": run_id, "initial_prompt": prompt})
    tree = encode(context, path="context")
    if encode(decode(tree, resolve=Resolver(allowed)), path="context") != tree:
        raise SerializationError("it would change on its way through JSON", path="context")
    return pack(tree, "context", size)


def _refuse_session_classes(tree: Any) -> None:
    """Refuse an input with a value of a class that only the interactive session in this process has."""
    for each in mappings_in(tree):
        if "$" in each and str(each.get("c", "")).startswith(f"{MAIN}:"):
            message = f"the class {each['c'].partition(':')[2]} is defined in an interactive session, where no worker can import it"
            way_out = "define it in a module, or run the pipeline here: flujo_worker.LocalEngine().run(pipeline, value)"
            raise SerializationError(message, path="input", suggestion=way_out)


def pack(tree: Any, what: str, size: SizeLimits) -> Packed:
    """Pack a tree that may travel; raises SnapshotTooLarge."""
    packed = Packed.of(tree)
    length = packed.length
    if length > size.snapshot_max_bytes:
        message = f"{length:,} bytes of JSON; at most {size.snapshot_max_bytes:,} can be sent"
        way_out = "keep large data in your own store and send its key, or raise snapshot_max_bytes"
        raise SnapshotTooLarge(message, path=what, suggestion=way_out)
    return packed


def stored_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of metadata as it is stored and read back; raises SerializationError, or SnapshotTooLarge above the limit."""
    text = stored(dict(metadata), path="metadata").encode()
    if len(text) > MAX_METADATA_BYTES:
        message = f"{len(text):,} bytes of JSON; at most {MAX_METADATA_BYTES:,} are allowed"
        way_out = "put large data into the input or the context, or keep it in your own store and name its key"
        raise SnapshotTooLarge(message, path="metadata", suggestion=way_out)
    kept: dict[str, Any] = loads(text)
    return kept


def deadline_in(seconds: Any, now: float) -> float | None:
    """Return the moment of a deadline that is so many seconds after now; None without one. Raises ConfigurationError for another type."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | None):
        raise ConfigurationError(f"`deadline_s` must be a number of seconds, got a {type(seconds).__name__}")
    return None if seconds is None else now + seconds


def check_order(order: Order) -> None:
    """Refuse an option that cannot be; raises ConfigurationError."""
    if not is_run_id(order.run_id):
        message = f"run id {order.run_id!r} may contain only letters, digits, '_', '-' and '.', {MAX_RUN_ID} at most"
        raise ConfigurationError(message)
    if order.priority is not None and (type(order.priority) is not int or order.priority not in PRIORITIES):
        raise ConfigurationError(f"priority {order.priority!r} must be from 0, which is served first, to 9")
    if order.deadline is not None and not 0 <= order.deadline <= LAST_DEADLINE:
        raise ConfigurationError(f"a deadline at unix second {order.deadline:g} must be before the year 10000")
    key = order.idempotency_key
    if key is not None and not _is_word(key):
        raise ConfigurationError(f"an idempotency key must have 1 to {MAX_WORD} printable characters")
    trace_parent: Any = order.trace_parent
    if trace_parent is not None and not (isinstance(trace_parent, str) and _TRACE_PARENT.fullmatch(trace_parent)):
        message = f"trace_parent {str(trace_parent)[:80]!r} is not a W3C trace context"
        way_out = "give the value of a `traceparent` header: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>"
        raise ConfigurationError(message, suggestion=way_out)
    for name, word in (("tenant", order.tenant), ("queue", order.queue or "")):
        if word != "" and not _is_word(word):
            raise ConfigurationError(f"{name} {str(word)[:40]!r} must have 1 to {MAX_WORD} printable characters")
    if not isinstance(order.metadata, Mapping):
        raise ConfigurationError(f"`metadata` must be a mapping, got a {type(order.metadata).__name__}")


def _is_word(text: Any) -> bool:
    """Return whether Postgres and a broker take it as it is."""
    return isinstance(text, str) and 0 < len(text) <= MAX_WORD and text.isprintable()
