"""A document as the rules see it: its steps, each with its place in the flow, and the texts that are read there. Pure.

It must not report faults, nor fail on them: what has the wrong shape is left out. In: a document;
out: a `DocumentIndex`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from flujo_client.blueprint.finding import Path
from flujo_client.blueprint.keys import AGENT
from flujo_client.blueprint.kind import EVERY_KEY_PATH, KINDS, BlueprintKind, BodyShape, KeyPath, StepShape, kind_word
from flujo_client.blueprint.rules.model import UNKNOWN, Fields, is_read, reads_of
from flujo_client.plan.kinds import KindSpec

Data = Mapping[Any, Any]
NO: Final[Data] = {}
_UNKNOWN: Final = KindSpec(name="")


@dataclass(frozen=True, slots=True, eq=False)
class StepNode:
    """A step at its place."""

    data: Data
    """The keys of the step, with their values."""
    path: Path
    """Its path in the document."""
    above: StepNode | None
    """The step around it; None at the top."""
    body: Path
    """The path of the body around it; `index` is its place there."""
    index: int
    how: str
    """The way in which the sibling bodies run: in a `row` (the document's own), `side` by side, one by `choice`, `again` and again, as a `state`,
    `instead` of what failed, or `inside` a cache."""

    @property
    def name(self) -> str:
        return str(self.data.get("name", self.data.get("step", "")))

    @property
    def kind(self) -> BlueprintKind | None:
        """Return its kind; None if there is no such kind."""
        word = kind_word(self.data)
        return KINDS.get(word) if isinstance(word, str) else None

    @property
    def key_paths(self) -> tuple[KeyPath, ...]:
        """Return the paths of the keys that it may have."""
        return EVERY_KEY_PATH if self.kind is None else self.kind.key_paths

    @property
    def spec(self) -> KindSpec:
        return _UNKNOWN if self.kind is None else self.kind.spec

    def table(self, key: str) -> Data:
        """Return the mapping under a key; an empty one for anything else."""
        found = self.data.get(key)
        return found if isinstance(found, Mapping) else NO

    def around(self) -> Iterator[StepNode]:
        """Return it and the steps it is in, the innermost first."""
        here: StepNode | None = self
        while here is not None:
            yield here
            here = here.above


@dataclass(frozen=True, slots=True, eq=False)
class TextNode:
    """An expression or template at its place."""

    at: StepNode
    """The step at which the text is read; `after` says whether the steps inside have run by then."""
    path: Path
    text: str
    after: bool
    names: frozenset[tuple[str, ...]]
    """The paths that the text reads, as `Expression.names`."""
    filters: frozenset[str]
    """The filters that the text uses, as `Expression.filters`."""


def reach(value: Any, pattern: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Return what is under a path in which `*` is any key or index."""
    if not pattern:
        yield path, value
        return
    first, *rest = pattern
    for key, each in (
        items_of(value) if first == "*" else [(first, value.get(first))] if isinstance(value, Mapping) else ()
    ):
        if each is not None:
            yield from reach(each, tuple(rest), (*path, key))


def texts_in(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Return every text in a value."""
    if isinstance(value, str):
        yield path, value
    for key, each in items_of(value):
        yield from texts_in(each, (*path, key))


def bodies_of(step: StepNode) -> Iterator[tuple[Path, Any, str]]:
    """Return the bodies that a step runs: path, steps, and how the sibling bodies are run."""
    for key in step.key_paths:
        if isinstance(key.shape, BodyShape | StepShape):
            for path, body in reach(step.data, key.path, step.path):
                yield path, body, key.runs


def _steps(body: Any, path: Path, above: StepNode | None, how: str) -> Iterator[StepNode]:
    given = enumerate(body) if isinstance(body, list) else [(0, body)]
    for index, data in given:
        if not isinstance(data, Mapping):
            continue
        step = StepNode(data, (*path, index) if isinstance(body, list) else path, above, path, index, how)
        yield step
        for inner_path, inner, inner_how in bodies_of(step):
            yield from _steps(inner, inner_path, step, inner_how)


def items_of(value: Any) -> Any:
    """Return the items of a mapping, or the items of a list by index; anything else has none."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


@dataclass(frozen=True)
class DocumentIndex:
    """A document to apply rules to."""

    document: Data
    """The document with the contents of all files that it names."""
    path: Path
    """Its path in its file: empty, unless it is written out under `imports`."""
    context: Fields | None
    """The fields of its context; None if it has no context."""
    is_part: bool = False
    """Whether it is imported, so that its context may come from the importing blueprint."""

    def table(self, key: str) -> Data:
        found = self.document.get(key)
        return found if isinstance(found, Mapping) else NO

    @cached_property
    def steps(self) -> tuple[StepNode, ...]:
        """Return every step, a container before what it holds."""
        return tuple(_steps(self.document.get("steps"), (*self.path, "steps"), None, "row"))

    @cached_property
    def texts(self) -> tuple[TextNode, ...]:
        """Return every expression and template."""
        return tuple(text for step in self.steps for text in self._texts(step))

    @cached_property
    def by_name(self) -> Mapping[str, list[StepNode]]:
        found: dict[str, list[StepNode]] = {}
        for step in self.steps:
            found.setdefault(step.name, []).append(step)
        return found

    @cached_property
    def texts_by_step(self) -> Mapping[Path, list[TextNode]]:
        """Return the texts of each step itself, by its path."""
        found: dict[Path, list[TextNode]] = {}
        for text in self.texts:
            found.setdefault(text.at.path, []).append(text)
        return found

    def texts_of(self, step: StepNode) -> Sequence[TextNode]:
        return self.texts_by_step.get(step.path, ())

    @cached_property
    def read_by_name(self) -> frozenset[str]:
        """Return the steps whose outputs are read by name; a bare `steps` reads all."""
        paths = [names for text in self.texts for names in text.names if names[0] == "steps"]
        return frozenset(self.by_name if ("steps",) in paths else (names[1] for names in paths))

    def within(self, path: Path) -> Sequence[StepNode]:
        """Return the steps that are at a path or below it, a container before what it holds."""
        begin, end = self._spans.get(path, (0, 0))
        return self.steps[begin:end]

    @cached_property
    def _spans(self) -> Mapping[Path, tuple[int, int]]:
        found: dict[Path, tuple[int, int]] = {}
        for index, step in enumerate(self.steps):
            for length in range(len(self.path), len(step.path) + 1):
                begin, _ = found.get(step.path[:length], (index, index))
                found[step.path[:length]] = begin, index + 1
        return found

    def before(self, step: StepNode) -> StepNode | None:
        """Return the step before another in the same body."""
        return self._rows.get((step.body, step.index - 1))

    def context_at(self, step: StepNode) -> Fields | None:
        """Return the fields of the context that a step runs in."""
        return self.context if search_of(step) is None else UNKNOWN

    def agent(self, step: StepNode) -> tuple[Path, Data] | None:
        """Return the entry of this document that a step's agent names, with its path."""
        return self.entry(step.data.get("uses", step.data.get("agent")), (*step.path, "agent"))

    def entry(self, given: Any, path: Path) -> tuple[Path, Data] | None:
        """Return the entry that `agents.<name>`, an `id` or its own keys stand for."""
        if isinstance(given, Mapping):
            return self.entry(given["id"], path) if "id" in given else (path, given)
        table, _, name = str(given).partition(".")
        found = self.table("agents").get(name) if table == "agents" else None
        return ((*self.path, "agents", name), found) if isinstance(found, Mapping) else None

    @cached_property
    def _rows(self) -> Mapping[tuple[Path, int], StepNode]:
        return {(step.body, step.index): step for step in self.steps}

    @staticmethod
    def _texts(step: StepNode) -> Iterator[TextNode]:
        for key in (each for each in step.key_paths if is_read(each.shape)):
            values = (each for each in reach(step.data, key.path, step.path) if key.shape.fits(each[1]))
            for path, text in (each for top, value in values for each in texts_in(value, top)):
                reads = reads_of(key.shape, text)
                if reads is not None:
                    yield TextNode(step, path, text, key.after, reads.names, reads.filters)


def search_of(step: StepNode) -> StepNode | None:
    """Find the innermost tree search that a step runs in, because that has its own context; its fallback runs outside."""
    steps = pairwise(step.around())
    return next(
        (around for each, around in steps if around.kind and around.kind.isolates_context and each.how != "instead"),
        None,
    )


def agents_of(doc: DocumentIndex) -> Iterator[tuple[Path, Data]]:
    """Return the entries of a document, and those that are on its steps."""
    for name in doc.table("agents"):
        if found := doc.entry(f"agents.{name}", ()):
            yield found
    paths = dict.fromkeys(key.path for kind in KINDS.values() for key in kind.key_paths if key.shape is AGENT)
    for step in doc.steps:
        for path, given in (each for pattern in paths for each in reach(step.data, pattern, step.path)):
            found = doc.entry(given, path)
            if found is not None and found[0] == path:
                yield found


def is_before(step: StepNode, text: TextNode) -> bool:
    """Return whether a step may have run when a text is read."""
    line = [*reversed([*step.around()])]
    reader = [*reversed([*text.at.around()])]
    for index, (one, other) in enumerate(zip(line, reader, strict=False)):
        if one is other:
            continue
        if any(each.spec.runs_bodies_again for each in reader[:index]):
            return True
        return one.index < other.index if one.body == other.body else bool({"state", "instead"} & {one.how, other.how})
    if any(each.spec.runs_bodies_again for each in reader[: len(line) - 1]):
        return True
    return len(line) > len(reader) and text.after
