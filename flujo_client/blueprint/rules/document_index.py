"""A document as the rules see it: its steps, each with its place in the flow, and the texts that are read there. Pure.

It must not report faults, nor fail on them: what has the wrong shape is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from flujo_client.blueprint.finding import Path
from flujo_client.blueprint.keys import AGENT
from flujo_client.blueprint.kind import EVERY_KEY_PATH, KINDS, BlueprintKind, BodyShape, KeyPath, StepShape, kind_word
from flujo_client.blueprint.rules.model import UNKNOWN, Fields, is_read, reads_of
from flujo_client.plan.kinds import KindSpec

Data = Mapping[Any, Any]
_UNKNOWN: Final = KindSpec(name="")


def table_of(data: Any, key: str) -> Data:
    """Return the mapping under a key; an empty one for anything else."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, eq=False)
class StepNode:
    data: Data
    """The keys of the step, with their values."""
    path: Path
    above: StepNode | None
    """The step around it; None at the top."""
    body: Path
    """The path of the body around it; `index` is its place there."""
    index: int
    before: StepNode | None
    """The step before it in the same body."""
    how: str
    """How the sibling bodies run: in a `row` (the document's own), or as `Key.runs`."""

    @property
    def name(self) -> str:
        return str(self.data.get("name", self.data.get("step", "")))

    @property
    def kind(self) -> BlueprintKind | None:
        word = kind_word(self.data)
        return KINDS.get(word) if isinstance(word, str) else None

    @property
    def key_paths(self) -> tuple[KeyPath, ...]:
        return EVERY_KEY_PATH if self.kind is None else self.kind.key_paths

    @property
    def spec(self) -> KindSpec:
        return _UNKNOWN if self.kind is None else self.kind.spec

    def table(self, key: str) -> Data:
        return table_of(self.data, key)

    def listed(self, key: str) -> list[Any]:
        found = self.data.get(key)
        return found if isinstance(found, list) else []

    @cached_property
    def texts(self) -> tuple[TextNode, ...]:
        """Return the expressions and templates of the step itself."""
        return tuple(self._texts())

    def _texts(self) -> Iterator[TextNode]:
        for key in (each for each in self.key_paths if is_read(each.shape)):
            values = (each for each in reach(self.data, key.path, self.path) if key.shape.fits(each[1]))
            for path, text in (each for top, value in values for each in walk(value, top)):
                reads = reads_of(key.shape, text) if isinstance(text, str) else None
                if reads is not None:
                    yield TextNode(self, path, text, key.after, *reads)

    @cached_property
    def line(self) -> tuple[StepNode, ...]:
        """Return the steps it is in, the outermost first, and itself."""
        return (self,) if self.above is None else (*self.above.line, self)

    @cached_property
    def search(self) -> StepNode | None:
        """Return the innermost tree search it runs in, which has its own context; the search's fallback runs outside."""
        if self.above is None:
            return None
        is_in = self.above.kind and self.above.kind.isolates_context and self.how != "instead"
        return self.above if is_in else self.above.search


@dataclass(frozen=True, slots=True, eq=False)
class TextNode:
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
    for key, each in items_of(value):
        if first in ("*", key) and each is not None:
            yield from reach(each, tuple(rest), (*path, key))


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield a value and all that is in it, with their paths, the nearest first."""
    row = [(path, value)]
    while row:
        yield from row
        row = [((*above, key), each) for above, holder in row for key, each in items_of(holder)]


def value_at(document: Any, path: Path) -> Any:
    """Return what is at a path; None if nothing is."""
    for part in path:
        document = dict(items_of(document)).get(part)
    return document


def bodies_of(step: StepNode) -> Iterator[tuple[Path, Any, str]]:
    """Return the bodies that a step runs: path, steps, and how the sibling bodies are run."""
    for key in step.key_paths:
        if isinstance(key.shape, BodyShape | StepShape):
            for path, body in reach(step.data, key.path, step.path):
                yield path, body, key.runs


def _steps(body: Any, path: Path, above: StepNode | None, how: str) -> Iterator[StepNode]:
    before: StepNode | None = None
    for index, data in enumerate(body) if isinstance(body, list) else [(0, body)]:
        if not isinstance(data, Mapping):
            continue
        step = StepNode(data, (*path, index) if isinstance(body, list) else path, above, path, index, before, how)
        before = step
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
        return table_of(self.document, key)

    @cached_property
    def steps(self) -> tuple[StepNode, ...]:
        """Return every step, a container before what it holds."""
        return tuple(_steps(self.document.get("steps"), (*self.path, "steps"), None, "row"))

    @cached_property
    def texts(self) -> tuple[TextNode, ...]:
        return tuple(text for step in self.steps for text in step.texts)

    @cached_property
    def by_name(self) -> Mapping[str, list[StepNode]]:
        found: dict[str, list[StepNode]] = {}
        for step in self.steps:
            found.setdefault(step.name, []).append(step)
        return found

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

    def context_at(self, step: StepNode) -> Fields | None:
        """Return the fields of the context that a step runs in."""
        return self.context if step.search is None else UNKNOWN

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
    line, reader = step.line, text.at.line
    for index, (one, other) in enumerate(zip(line, reader, strict=False)):
        if one is other:
            continue
        if any(each.spec.runs_bodies_again for each in reader[:index]):
            return True
        return one.index < other.index if one.body == other.body else bool({"state", "instead"} & {one.how, other.how})
    if any(each.spec.runs_bodies_again for each in reader[: len(line) - 1]):
        return True
    return len(line) > len(reader) and text.after
