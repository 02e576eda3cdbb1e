"""The rows that a merge writes: each column with the function that reads it. Statements have an array for each, named after it. Pure.

JSON goes as text. A test compares the columns with the parameters of the statements and with the columns of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeAlias

import orjson

from flujo_client.address import AttemptKey
from flujo_client.contract.outcome import Fault
from flujo_client.serial import safe_serialize, storable_text, stored_safely

Columns: TypeAlias = dict[str, Callable[[Any], Any]]


def shown(tree: Any) -> str:
    """Write any value as JSON within bounds, to show it to people; no code reads it back."""
    return orjson.dumps(safe_serialize(tree)).decode()


def _written(name: str, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that reads an attribute, and serializes it if it is not None."""
    read = attrgetter(name)
    return lambda row: None if (value := read(row)) is None else write(value)


def _alike(names: str, write: Callable[[Any], Any] | None = None) -> Columns:
    """Return columns that are named after the attributes that they hold."""
    return {name.rpartition(".")[2]: _written(name, write) if write else attrgetter(name) for name in names.split()}


def _fault(fault: Fault) -> str:
    return stored_safely(fault.to_tree())


def _question(question: dict[str, Any]) -> str:
    """Write a question, its schema once more as a text: jsonb would lose the order of its fields, in which people are asked for them."""
    schema = question["schema"]
    return stored_safely(question if schema is None else {**question, "schema_text": stored_safely(schema)})


_ERROR: Final[Columns] = {"error": _written("fault", _fault)}

ENDED_ATTEMPT: Final[Columns] = {
    **_alike("notice.envelope.key notice.envelope.ticket.run notice.fence notice.claim_id notice.outcome.latency_s"),
    **_alike("close.status close.reason"),
    "result": _written("notice.outcome.output", bytes),
    "error": _written("notice.outcome.fault", _fault),
    "metadata": _written("notice.outcome.metadata", lambda metadata: stored_safely(metadata) if metadata else None),
    "code": _written("notice.outcome.code", attrgetter("version")),
    "input": _written("failed_input", bytes),
    "answer": _written("notice.outcome.answer", storable_text),
}
"""The row of an attempt that ends, read from a decision."""
ENDED_RUN: Final = _alike("status reason failed_key") | _alike("output", bytes) | _ERROR
SCOPE_UPDATE: Final[Columns] = {
    **_alike("address cursor status"),
    **_alike("output context patch", bytes),
    **_alike("metadata", stored_safely),
    **_ERROR,
    "seen": attrgetter("version"),
    "merges": lambda move: int(move.merges),
    "drops": attrgetter("drops_context"),
}
"""`seen` is the version that the decision was made with."""
NEW_SCOPE: Final[Columns] = {
    **_alike("address parent kind step name place cursor version status waiting"),
    **_alike("output context", bytes),
    **_alike("metadata", stored_safely),
    **_ERROR,
}
NEW_ATTEMPT: Final[Columns] = {
    **_alike("address step number kind queue until units_from pauses status waits_for claimed_by"),
    **_alike("guidance", storable_text),
    "question": _written("question", _question),
    **_ERROR,
}
"""`claimed_by`: the worker that has it."""
NEW_CHECKPOINT: Final[Columns] = {"at": attrgetter("place"), **_alike("context", bytes)}
"""The place of a top-level step, and the context it begins with if that is another one."""
ASKED: Final = _alike("scope requested.tokens") | _alike("requested.usd", str)
"""What an attempt reserves from a budget."""
STORED_VALUE: Final[Columns] = {"digest": str}
NEW_EVENT: Final[Columns] = _alike("level at") | _alike("name", storable_text) | _alike("data", shown)
NEW_SPEND: Final = _alike("input_tokens output_tokens requests cost_usd") | _alike("model", storable_text)
NEW_UNIT: Final[Columns] = {
    "run_id": attrgetter("run"),
    **_alike("name.place name.digest name.nth operation effect key fence claim_id model"),
    **_alike("asked", bytes),
}
NEW_CHILD_RUN: Final[Columns] = {
    **_alike(
        "run ticket.deadline ticket.trace_parent first.step first.kind first.queue first.version first.input.digest"
    ),
    **_alike("name", storable_text),
    **_alike("first.input first.context", bytes),
    **_alike("ticket.limits", stored_safely),
    "at": attrgetter("parent_address"),
    "root": attrgetter("first.address"),
    "key": lambda child: str(
        AttemptKey(child.run, child.first.address, child.first.step, child.first.number, child.first.kind)
    ),
}
"""The row of a run, with its root scope and its first work row. `at`: where its parent waits for it."""
NEW_CORRECTION: Final[Columns] = {
    **_alike("repair_depth latency_ms_saved"),
    **_alike("step_name agent_id provider_model schema_hash policy_version stage", storable_text),
    "transforms": lambda made: stored_safely(list(made.transforms)),
}
