"""Whether a step takes what the one before it returns, as far as both declare it.

Pydantic's own schemas of the two types are compared, with its lax rules. What is not known is accepted: `Any`, type variables, types with
validators of their own, wrapped functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from flujo_client.pipeline.annotations import declared_types, type_text
from flujo_client.pipeline.pipeline import Pipeline, steps_of, walk
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds
from flujo_client.plan.identity import asks_a_model
from flujo_client.schemas.core import Core, core_of

_PASSED_IN: Final[dict[Any, str | None]] = {
    **dict.fromkeys((kinds.PARALLEL, kinds.CACHE, kinds.NESTED, kinds.FALLBACK)),
    kinds.CONDITIONAL: "branch_input_mapper",
    kinds.LOOP: "initial_input_to_loop_body_mapper",
}
"""The containers whose bodies get their input, unless they have this function."""
_PASSED_OUT: Final[dict[Any, str | None]] = {
    **dict.fromkeys((kinds.FALLBACK, kinds.CACHE)),
    kinds.CONDITIONAL: "branch_output_mapper",
    kinds.LOOP: "loop_output_mapper",
}
"""The containers whose output is that of their bodies, unless they have this function."""


class _End(NamedTuple):
    """The place where a value leaves a function or enters one: its step, the function and the type."""

    step: Step
    agent: Any
    type: Any


def type_findings(pipeline: Pipeline, live: Callable[[Any], Any]) -> Iterator[tuple[str, str]]:
    """Find the steps that certainly refuse what the step before them returns: what is wrong, and the step's path; `live` loads references."""
    inner = ((f"{path}/{key}/", body) for path, step in walk(pipeline) for key, body in step.bodies().items())
    for above, body in (("", pipeline), *inner):
        for before, after in pairwise(steps_of(body)):
            for text in _between(before, after, live):
                yield text, f"{above}{after.name}"


def _between(before: Step, after: Step, live: Callable[[Any], Any]) -> Iterator[str]:
    given = [each for each in _ends(before, live, _returned, _PASSED_OUT, -1) if each.type is not Any]
    for entry in _ends(after, live, _taken, _PASSED_IN, 0) if given else ():
        wrong = next((each for each in given if entry.type is not Any and is_refused(each.type, entry.type)), None)
        if wrong is not None:
            name, parameter = getattr(entry.agent, "__name__", entry.step.name), declared_types(entry.agent).parameter
            yield f"its input is what step '{wrong.step.name}' returns, {type_text(wrong.type)}, which does not fit `{name}({parameter}: {type_text(entry.type)})`"
            return


def _ends(
    step: Step, live: Callable[[Any], Any], of: Callable[[Step, Any], Any], through: dict[Any, str | None], place: int
) -> Iterator[_End]:
    """Yield the functions that a step's input enters, or its output leaves, unchanged."""
    if step.spec is kinds.STEP:
        agent = live(step.agent)
        yield _End(step, agent, of(step, agent))
    elif step.spec in through and (through[step.spec] is None or getattr(step, str(through[step.spec])) is None):
        for body in step.bodies().values():
            yield from _ends(steps_of(body)[place], live, of, through, place)


def _taken(step: Step, agent: Any) -> Any:
    changes = step.input is not None or step.processors.prompt_processors
    return Any if changes else declared_types(agent).takes


def _returned(step: Step, agent: Any) -> Any:
    if step.processors.output_processors or step.plugins:
        return Any
    if not asks_a_model(agent):
        gives = Any if hasattr(agent, "__wrapped__") else declared_types(agent).gives
        return Any if gives is type(None) else gives  # one that only asks a person returns the answer
    output_type = getattr(agent, "output_type", Any)
    is_known = isinstance(output_type, type) and not (output_type is str and step.processing is not None)
    return output_type if is_known and not getattr(getattr(agent, "processors", None), "output_processors", ()) else Any


_DEEPEST: Final = 10
"""Lists in lists that are compared: a type may contain itself."""
_OURS: Final = frozenset({"flujo_client", "flujo_worker", "pydantic_ai"})
"""The packages whose classes are unwrapped, or mean more than themselves, when a function returns them."""
_FAMILIES: Final[Mapping[str, tuple[set[str], set[str]]]] = {
    "record": ({"model", "dataclass"}, {"mapping"}),
    "mapping": ({"typed-dict", "dict"}, {"mapping"}),
    "items": ({"list", "tuple", "set", "frozenset"}, {"items"}),
    "text": ({"str", "bytes"}, {"text", "scalar"}),
    "number": ({"int", "float", "bool"}, {"number", "text", "scalar"}),
    "scalar": (
        {"date", "datetime", "time", "timedelta", "uuid", "decimal", "enum", "url"},
        {"scalar", "number", "text"},
    ),
    "none": ({"none"}, {"none"}),
}
"""The types of schemas in each family, and the families that pydantic converts to it."""


def is_refused(given: Any, taken: Any) -> bool:
    """Return whether no value of one type, apart from empty containers, fits another; False where that is not known."""
    return _is_refused(_Schema.of(given), _Schema.of(taken))


class _Schema(NamedTuple):
    """A part of a pydantic schema, and the definitions that it refers to."""

    core: Core
    known: dict[str, Core]

    @classmethod
    def of(cls, kind: Any) -> _Schema:
        return cls(core_of(kind) or {"type": "any"}, {}).plain()

    def part(self, core: Any) -> _Schema:
        return _Schema(core, self.known).plain()

    def plain(self) -> _Schema:
        """Return what is behind references, defaults and checks of a value that has the type already."""
        core, known = self.core, self.known
        while True:
            match core["type"]:
                case "definitions":
                    known = {**known, **{each["ref"]: each for each in core["definitions"]}}
                    core = core["schema"]
                case "definition-ref":
                    core = known.get(core["schema_ref"], {"type": "any"})
                case "default" | "function-after":
                    core = core["schema"]
                case "lax-or-strict":
                    core = core["lax_schema"]
                case "json-or-python":
                    core = core["python_schema"]
                case _:
                    return _Schema(core, known)

    def choices(self) -> list[_Schema]:
        """Return the members of a union; of any other type itself."""
        match self.core["type"]:
            case "nullable":
                return [*self.part(self.core["schema"]).choices(), self.part({"type": "none"})]
            case "union":
                members = (each[0] if isinstance(each, tuple) else each for each in self.core["choices"])
                return [part for each in members for part in self.part(each).choices()]
            case "literal":
                types = {type(each) for each in self.core["expected"]}
                return [part for kind in types for part in _Schema.of(kind).choices()]
        return [self]

    @property
    def cls(self) -> type | None:
        """Return the class that values are instances of, where there is one: a `TypedDict` is none."""
        return None if self.core["type"] == "typed-dict" else self.core.get("cls")

    @property
    def family(self) -> str | None:
        """Return what kind of value it is; None where a class may take or be anything."""
        core, cls = self.core, self.cls
        if core.get("root_model") or core.get("custom_init") or (core.get("config") or {}).get("from_attributes"):
            return None
        if cls is not None and any(base.__module__.partition(".")[0] in _OURS for base in cls.__mro__):
            return None
        if core["type"] == "model" and self.part(core["schema"]).core["type"] != "model-fields":
            return None
        return next((family for family, (types, _) in _FAMILIES.items() if core["type"] in types), None)


def _is_refused(given: _Schema, taken: _Schema, depth: int = 0) -> bool:
    pairs = ((a, b) for a in given.choices() for b in taken.choices())
    return depth <= _DEEPEST and all(_is_pair_refused(a, b, depth) for a, b in pairs)


def _is_pair_refused(given: _Schema, taken: _Schema, depth: int) -> bool:
    own, other = given.cls, taken.cls
    if own is not None and other is not None and (issubclass(own, other) or issubclass(other, own)):
        return False
    if given.family is None or taken.family is None:
        return False
    if given.family not in _FAMILIES[taken.family][1]:
        return True
    inside = "values_schema" if given.family == "mapping" else "items_schema"
    inner, wanted = given.core.get(inside), taken.core.get(inside)
    if not isinstance(inner, dict) or not isinstance(wanted, dict):
        return False
    return _is_refused(given.part(inner), taken.part(wanted), depth + 1)
