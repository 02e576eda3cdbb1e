"""The form of each kind of step in blueprints: one `BlueprintKind` each, and the table of them, which the package `kinds` fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.shapes import (
    ANY,
    INSIDE,
    TEXT,
    AnyOf,
    DocumentLocation,
    FieldType,
    Key,
    ListOf,
    MapOf,
    OfMapping,
    OneOf,
    Table,
)
from flujo_client.blueprint.value_types import Model
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.validation import Finding
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from flujo_client.blueprint.build import Building
    from flujo_client.blueprint.document import Writing

INIT: Final = "init"
"""The changes of the context that a step begins with, and the name behind its own of the step that makes them."""

Data: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeyPath:
    """A place where a value of a shape may be."""

    shape: FieldType
    path: tuple[str, ...] = ()
    """Keys from the table down; `*` is any key or index."""
    runs: str = INSIDE
    """How the steps there run relative to each other, as `Key.runs`."""
    after: bool = False
    """Whether texts there are read after the steps inside have run."""


def key_paths(top: KeyPath) -> Iterator[KeyPath]:
    """Yield a path and every path below it, once for each shape that may be there."""
    yield top
    shape = top.shape
    if isinstance(shape, Table):
        for name, key in shape.keys.items():
            yield from key_paths(KeyPath(key.shape, (*top.path, name), key.runs, top.after or key.after))
    elif isinstance(shape, ListOf | MapOf):
        yield from key_paths(replace(top, shape=shape.each, path=(*top.path, "*")))
    elif isinstance(shape, AnyOf):
        for each in shape.shapes:
            yield from key_paths(replace(top, shape=each))


@dataclass(frozen=True, kw_only=True)
class BlueprintKind:
    spec: kinds.KindSpec = kinds.STEP
    """The facts of the kind, which the package `kinds` adds."""
    step: type[Step]
    """The class of its steps; a step is written by the kind of its own class."""
    keys: Mapping[str, Key]
    """The keys in addition to those of every step."""
    build: Callable[[Building, Data], dict[str, Any]] = lambda *_: {}
    """A function that returns the arguments of the step that the shapes of its keys do not make, from its valid keys."""
    write: Callable[[Writing, Any], dict[str, Any]] = lambda *_: {}
    """A function that returns the keys that the shapes do not write, of such a step."""
    one_of: tuple[tuple[str, ...], ...] = (("name", "step"),)
    """Groups of keys of which exactly one is required."""
    own_table: str | None = None
    """The key of the table with its own options, if they have a table."""
    is_import: bool = False
    """Whether `uses: imports.<name>` selects this kind, instead of `kind`."""
    asks_people: bool = False
    has_item: bool = False
    """Whether `this` is an item inside it."""
    isolates_context: bool = False
    """Whether the steps inside it run in a separate context."""

    @property
    def word(self) -> str:
        """Return its name in blueprints."""
        return str(self.spec.yaml_name)

    @property
    def called(self) -> str:
        """Return its name in sentences."""
        return f"{'an' if self.word[0] in 'ai' else 'a'} {self.word}"

    @property
    def options(self) -> Table | None:
        own = None if self.own_table is None else self.keys[self.own_table].shape
        return own if isinstance(own, Table) else None

    @property
    def own_keys(self) -> Mapping[str, Key]:
        """Return the keys of its own table; without one, those that it adds to the keys of every step."""
        return self.keys if self.options is None else self.options.keys

    @property
    def init_table(self) -> str | None:
        """Return the key of its own table if that may have `init`, so that it can change the context before it begins."""
        return self.own_table if self.options is not None and INIT in self.options.keys else None

    @cached_property
    def table(self) -> Table:
        config = {} if "config" in self.keys else {"config": MODE}
        others = {} if self.is_import else self._keys_of_others()
        return Table({**EVERY, **config, **self.keys}, self.called, MappingProxyType(others), self.one_of)

    @cached_property
    def key_paths(self) -> tuple[KeyPath, ...]:
        """Return the paths of its keys and of those below them, the keys of every step last."""
        return (*key_paths(KeyPath(Table(self.keys, self.called))), *EVERY_KEY_PATH)

    def _keys_of_others(self) -> dict[str, str]:
        tables = [(each.called, each.keys) for each in KINDS.values() if not each.is_import]
        own = [(each.own_table, each.options) for each in KINDS.values()]
        tables += [(f"{table.called}, under `{key}`", table.keys) for key, table in own if table is not None]
        names = {name for _, keys in tables for name in keys} - {*EVERY, *self.keys}
        return {name: " or ".join(where for where, keys in tables if name in keys) for name in names}


KINDS: Final[dict[str, BlueprintKind]] = {}
"""Every kind, by its name in blueprints."""


def words() -> list[str]:
    """Return what `kind` may be."""
    return [word for word, kind in KINDS.items() if not kind.is_import]


def kind_word(step: Data) -> Any:
    """Return the name of a step's kind, known or not."""
    uses, kind = step.get("uses"), step.get("kind", kinds.STEP.yaml_name)
    is_import = kind == kinds.STEP.yaml_name and isinstance(uses, str) and uses.startswith("imports.")
    return kinds.NESTED.yaml_name if is_import else kind


def present(data: Data, *names: str) -> dict[str, Any]:
    """Return the keys that are there, under their own names."""
    return {name: data[name] for name in names if name in data}


class StepShape(OfMapping):
    """A step; its kind says which keys it has."""

    description = "a step: a mapping with `name` and, for most, `kind`"

    def findings(self, value: Mapping[str, Any], location: DocumentLocation) -> Iterator[Finding]:
        kind, known = value.get("kind", kinds.STEP.yaml_name), words()
        if not isinstance(kind, str) or kind not in known:
            hints = {"allowed": f"known: {', '.join(known)}", "nearest": nearest(kind, known)}
            yield location.at("kind").finding("Y-VALUE", f"'{shown(kind)}' is not a kind of step", **hints)
        else:
            yield from KINDS[kind_word(value)].table.findings(value, location)


class LoneStepShape(StepShape):
    """A step where there is room for one."""

    def findings(self, value: Mapping[str, Any], location: DocumentLocation) -> Iterator[Finding]:
        yield from super().findings(value, location)
        kind = KINDS.get(str(value.get("kind")))
        table = None if kind is None else kind.init_table
        if table is not None and isinstance(own := value.get(table), Mapping) and INIT in own:
            message = f"it runs as a separate step before the {table}, and only one step is allowed here: put a step before it"
            yield location.at(table, INIT).finding("Y-UNSUPPORTED", message)


class BodyShape:
    """The body of a container: a list of steps, or one step."""

    description = "a list of steps, or one step"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | Mapping)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if isinstance(value, Mapping):
            yield from STEP.findings(value, location)
        elif not value:
            yield location.finding("Y-VALUE", "it has no steps")
        else:
            yield from ListOf(STEP).findings(value, location)


STEP: Final = StepShape()
LONE_STEP: Final = LoneStepShape()
BODY: Final = BodyShape()
EVERY: Final[Mapping[str, Key]] = {
    "kind": Key(TEXT, "The kind of step; `step` by default."),
    "name": Key(TEXT, "Its name, unique among its neighbours, without `/`, `:` and `#`. `step` is an alias."),
    "step": Key(TEXT, "An alias of `name`."),
    "meta": Key(MapOf(ANY), "For your own use; stored with the plan."),
    "usage_limits": Key(Model(UsageLimits, "usage_limits"), "The most that it and the steps inside it may spend."),
    "fallback": Key(
        LONE_STEP,
        "A step that runs with the same input when this one has failed permanently.",
        field="fallback_step",
        runs="instead",
    ),
}
"""The keys of every step."""
EVERY_KEY_PATH: Final = tuple(key_paths(KeyPath(Table(EVERY, "a step"))))
EXECUTION_MODE: Final = Key(
    OneOf(("sync", "background")), "`background`: run as a separate run that the pipeline does not wait for."
)
MODE: Final = Key(
    Table(
        {"execution_mode": EXECUTION_MODE},
        "a container's config",
        MappingProxyType(dict.fromkeys(StepConfig.model_fields, "the steps inside")),
    ),
    "Only `execution_mode`; everything else belongs on the steps inside.",
)
