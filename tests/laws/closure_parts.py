"""The parts of the pipelines of the closure law: contexts, agents, conditions, mappers, judges.

Each is a self-describing value, and a function of its arguments only: input, context and guidance. So repeated calls give the same answer,
and a worker process makes the same pipeline as the client.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from flujo_client.contract.results import RefinementCheck, StepResult
from flujo_client.errors import AgentIOValidationError, PipelineAbortSignal

CALLS: Counter[str] = Counter()
"""How often each loop's output mapper was called in this process (M-281)."""


class Bare(BaseModel):
    """A context that keeps no outputs and no states."""

    count: int = 0
    notes: list[str] = []
    marks: dict[str, Any] = {}
    items: list[Any] = [3, "x"]
    word: str = ""
    last: Any = None


class Ledger(Bare):
    """A context with a field of every sort that merging knows, and those the containers write."""

    flag: bool = False
    seen: set[int] = set()
    b0: Any = None
    current_state: str | None = None
    next_state: str | None = None
    initial_prompt: str = ""
    import_artifacts: dict[str, Any] = {}
    step_outputs: dict[str, Any] = {}


class Loose(Ledger):
    """Stands for the context of an import that names no model: it takes any field."""


def plain(value: Any) -> Any:
    """A value as data that can be compared: of a failed branch only its name, of a set its order."""
    if isinstance(value, StepResult):
        return ["result", value.name, value.success]
    if isinstance(value, BaseModel):
        return [type(value).__name__, plain(dict(value) | (value.model_extra or {}))]
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(plain, value), key=repr)]
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def toss(sides: int, *given: Any) -> int:
    """A number below `sides` that the same values always give."""
    return zlib.crc32(repr([plain(each) for each in given]).encode()) % sides


@dataclass(frozen=True)
class Part:
    """Something that is in a pipeline."""

    salt: int

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"part": type(self).__name__} | {key: repr(value) for key, value in vars(self).items()}


@dataclass(frozen=True)
class Worker(Part):
    """A step's agent: it writes into its context, and then may fail, so that what it wrote must be forgotten.

    Args:
        acts: what it writes, by the names of `ACTS`.
        gives: what it answers, by the names of `GIFTS`.
        stumbles: how often it fails before it succeeds; its guidance tells how often it has.
        breaks: fails permanently with one of so many inputs; never when 0.
        aborts: ends the run with one of so many inputs.
    """

    acts: tuple[str, ...] = ()
    gives: str = "text"
    stumbles: int = 0
    breaks: int = 0
    aborts: int = 0

    async def run(self, data: Any, *, context: Any = None, guidance: str | None = None) -> Any:
        number = toss(7, self.salt, data)
        for act in self.acts if context is not None else ():
            ACTS[act](context, number)
        tried = int(re.findall(r"try (\d+)", guidance or "try 0")[-1])
        if tried < self.stumbles or (self.breaks and toss(self.breaks, self.salt, data, "breaks") == 0):
            raise AgentIOValidationError(f"try {tried + 1}")
        if self.aborts and toss(self.aborts, self.salt, data, "aborts") == 0:
            raise PipelineAbortSignal("enough")
        return GIFTS[self.gives](data, number)


def _count(context: Any, number: int) -> None:
    context.count = getattr(context, "count", 0) + number


def _note(context: Any, number: int) -> None:
    context.notes = [*getattr(context, "notes", []), f"note {number}"]


def _forget(context: Any, number: int) -> None:
    context.notes = getattr(context, "notes", [])[1:]


def _see(context: Any, number: int) -> None:
    context.seen = getattr(context, "seen", set()) | {number}


def _unsee(context: Any, number: int) -> None:
    context.seen = getattr(context, "seen", set()) - {number, number + 1, number + 2}


def _mark(context: Any, number: int) -> None:
    context.marks = {**getattr(context, "marks", {}), f"m{number % 3}": number}


def _grow(context: Any, number: int) -> None:
    marks = getattr(context, "marks", {})
    context.marks = {**marks, "n": marks.get("n", 0) + number, "all": [*marks.get("all", []), number]}


def _unmark(context: Any, number: int) -> None:
    context.marks = {key: each for key, each in getattr(context, "marks", {}).items() if key != f"m{number % 3}"}


def _item(context: Any, number: int) -> None:
    items = getattr(context, "items", [])
    context.items = [*items, number] if len(items) < 3 else [number]


def _no_items(context: Any, number: int) -> None:
    context.items = []


def _flag(context: Any, number: int) -> None:
    context.flag = not getattr(context, "flag", False)


def _word(context: Any, number: int) -> None:
    context.word = f"word {number % 2}"


def _go(context: Any, number: int) -> None:
    context.next_state = ("one", "two", "end", "nowhere")[number % 4]


def _b0(context: Any, number: int) -> None:
    context.b0 = number


ACTS: dict[str, Callable[[Any, int], None]] = {
    act.__name__: act
    for act in (_count, _note, _forget, _see, _unsee, _mark, _grow, _unmark, _item, _no_items, _flag, _word, _go, _b0)
}
LEDGER_ONLY = {"_see", "_unsee", "_flag", "_go", "_b0"}
GIFTS: dict[str, Callable[[Any, int], Any]] = {
    "text": lambda data, number: f"text {number} of {toss(1000, data)}",
    "number": lambda data, number: number + toss(5, data),
    "mapping": lambda data, number: {f"k{number % 2}": number, "of": toss(1000, data)},
    "list": lambda data, number: [number, {"of": toss(1000, data)}],
    "update": lambda data, number: {"word": f"update {number}", "marks": {"update": number}},
    "set": lambda data, number: {number, toss(9, data)},
    "same": lambda data, number: data,
}


@dataclass(frozen=True)
class Selector(Worker):
    """A router's agent: names of branches, in any order, some of them twice or unknown; or something else entirely."""

    async def run(self, data: Any, *, context: Any = None, guidance: str | None = None) -> Any:
        await super().run(data, context=context, guidance=guidance)
        names = ["b2", "b0", "b1", "b0", "nobody"]
        first = toss(12, self.salt, data, "select")
        return {10: "b1", 11: "b2" if self.salt % 3 else 17}.get(first, names[first % 3 : first % 3 + 1 + first // 3])


@dataclass(frozen=True)
class Critic(Part):
    """A critic that is content with some artifacts."""

    def run(self, data: Any, *, context: Any = None) -> RefinementCheck:
        if context is not None:
            context.count = getattr(context, "count", 0) + 1
        return RefinementCheck(is_complete=toss(3, self.salt, data) == 0, feedback=f"more {toss(9, data)}")


@dataclass(frozen=True)
class Refusal(Part):
    """A validator that refuses some outputs."""

    def __call__(self, output: Any) -> bool:
        return toss(5, self.salt, output) > 0


@dataclass(frozen=True)
class Question(Part):
    """What a person is asked; sometimes it is empty, sometimes it fails. What it does to the context is never kept."""

    def __call__(self, data: Any, context: Any) -> str:
        if hasattr(context, "count"):
            context.count = -1000
        if toss(15, self.salt, data) == 0:
            raise LookupError("no question")
        return "" if toss(15, self.salt, data) == 1 else f"question {toss(1000, self.salt, data)}"


def answer_to(message: str) -> Any:
    """What every person says to a question."""
    return [message, {"of": toss(1000, message)}][toss(2, message)]


@dataclass(frozen=True)
class Mapper(Part):
    """A mapper: text made of everything it is given; it fails sometimes. What it does to the context is never kept."""

    def __call__(self, *given: Any) -> Any:
        for each in given:
            if isinstance(each, BaseModel) and hasattr(each, "count"):
                each.count = -1000
        if toss(12, self.salt, *given) == 0:
            raise LookupError("a mapper failed")
        return f"mapped {toss(1000, self.salt, *given)}"


@dataclass(frozen=True)
class Original(Mapper):
    """An iteration mapper that asks for the loop's own input."""

    async def __call__(self, output: Any, context: Any, index: int, *, original_input: Any) -> Any:
        return f"from {toss(100, original_input)} {index} {toss(100, output, context)}"


@dataclass(frozen=True)
class LastWord(Mapper):
    """A loop's output mapper, whose calls are counted."""

    def __call__(self, *given: Any) -> Any:
        CALLS[str(self.salt)] += 1
        return None if toss(5, self.salt, *given) == 0 else super().__call__(*given)


@dataclass(frozen=True)
class Condition(Part):
    """A condition on the output and the context: true once in `sides`."""

    sides: int = 3

    async def __call__(self, output: Any, context: Any) -> bool:
        if toss(25, self.salt, output) == 0:
            raise LookupError("a condition failed")
        return toss(self.sides, self.salt, output, getattr(context, "count", None)) == 0


@dataclass(frozen=True)
class Choice(Part):
    """A conditional's condition: one of the keys."""

    keys: tuple[Any, ...] = ()

    def __call__(self, output: Any, context: Any) -> Any:
        return self.keys[toss(len(self.keys), self.salt, output, getattr(context, "notes", None))]


@dataclass(frozen=True)
class Fold(Part):
    """A merge function: in place, or by a new context."""

    def __call__(self, context: Any, branches: dict[str, Any]) -> Any:
        context.count = getattr(context, "count", 0) + sum(getattr(each, "count", 0) for each in branches.values())
        context.notes = [*branches]
        return context if self.salt % 2 else None


def total(outputs: dict[str, Any]) -> str:
    """A reducer."""
    return f"total {toss(1000, outputs)} of {len(outputs)}"
