"""A pipeline that can be in seven states, thirty edits of it, and the result of a run for each edit in each state.

Run it to write the table of docs/explanation/changed-code.md: `python tests/unit/worker/changing_code.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flujo_client import HumanInTheLoopStep, LoopStep, ParallelStep, Pipeline, PipelineContext, Step, StepConfig
from flujo_client.contract.carry_on import compatible
from flujo_client.pipeline.compile import compile_plan
from flujo_client.serial import Packed, encode
from flujo_worker.testing import LocalEngine

PAGE = Path(__file__).parents[3] / "docs/explanation/changed-code.md"
BEGIN, END = "<!-- the table: tests/unit/worker/changing_code.py -->\n", "<!-- end of the table -->\n"


def work(data: Any) -> Any:
    """The agent of most steps."""
    return data


def rework(data: Any) -> Any:
    """Another agent."""
    return data


class Tried:
    """An agent that fails at its first try in each engine."""

    def __init__(self) -> None:
        self.failed = False

    def run(self, data: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise ValueError("try again")
        return data


def twice(_: Any, context: Any) -> bool:
    """Whether the loop has gone round twice."""
    context.rounds += 1
    return context.rounds >= 2


def soon(_: Any, context: Any) -> bool:
    """Another condition, which says the same."""
    return twice(_, context)


@dataclass
class Text:
    """An output type."""


@dataclass
class Note:
    """Another output type."""


class Typed:
    """An agent that says what it gives."""

    def __init__(self, model: str = "test:one", output_type: type = Text, system_prompt: str = "Be brief.") -> None:
        self.model, self.output_type, self.system_prompt = model, output_type, system_prompt

    def run(self, data: Any) -> Any:
        return data


class Rounds(PipelineContext):
    """The runs' context."""

    rounds: int = 0
    kept: Any = None


class Widened(Rounds):
    """Another model of it."""

    more: int = 0


class Narrow(PipelineContext):
    """A third one, with another type of a field."""

    rounds: int = 0
    kept: str = ""


def to_narrow(old: dict[str, Any]) -> dict[str, Any]:
    """Migrate a context to the third model."""
    return to_text(old)


def _instead_of(old: Any, new: Any) -> Any:
    """Give new code the name that the old has: what an edit of a file does."""
    new.__name__, new.__qualname__ = old.__name__, old.__qualname__
    return new


class _More(PipelineContext):
    rounds: int = 0
    kept: Any = None
    more: int = 1


class _Fewer(PipelineContext):
    rounds: int = 0


class _Retyped(PipelineContext):
    rounds: int = 0
    kept: str = ""


def _work(data: Any) -> Any:
    return rework(data)


OTHER_BODY = _instead_of(work, _work)
MORE_FIELDS, FEWER_FIELDS, RETYPED = (_instead_of(Rounds, each) for each in (_More, _Fewer, _Retyped))


def to_text(old: dict[str, Any]) -> dict[str, Any]:
    """Migrate a context to the model whose field has another type."""
    return {**old, "kept": str(old["kept"] or "")}


@dataclass
class Shape:
    """The parts of the pipeline, so that an edit changes one of them."""

    first: Step = field(default_factory=lambda: Step("first", Typed()))
    tried: Step = field(default_factory=lambda: Step("tried", Tried(), config=StepConfig(max_retries=2)))
    left: list[Step] = field(default_factory=lambda: [Step("l1", work), Step("l2", work)])
    right: list[Step] = field(default_factory=lambda: [Step("r1", work)])
    branches: dict[str, list[Step]] = field(default_factory=dict)
    body: list[Step] = field(default_factory=lambda: [Step("b1", work), Step("b2", work)])
    condition: Callable[..., bool] = twice
    max_loops: int = 5
    ask: Step = field(default_factory=lambda: HumanInTheLoopStep("ask", "Go on?"))
    inner: list[Step] = field(default_factory=lambda: [Step("i1", work), Step("i2", work)])
    default: str = "none"
    before: list[Step] = field(default_factory=list)
    last: list[Step] = field(default_factory=lambda: [Step("last1", Typed()), Step("last2", work)])
    context: type[PipelineContext] | None = Rounds
    options: dict[str, Any] = field(default_factory=dict)

    def pipeline(self) -> Pipeline:
        """Build it."""
        branches = {"left": self.left, "right": self.right, **self.branches}
        child = Pipeline(self.inner, name="inner")
        steps = [
            *self.before,
            self.first,
            self.tried,
            ParallelStep("fan", branches={name: Pipeline(each) for name, each in branches.items()}),
            LoopStep(
                "loop", body=Pipeline(self.body), exit_condition_callable=self.condition, max_loops=self.max_loops
            ),
            self.ask,
            child.as_step("child", own_run=True, on_failure="continue_with_default", default=self.default),
            *self.last,
        ]
        options = {"version": "1", **self.options}
        return Pipeline([each for each in steps if each.name], name="changing", context_model=self.context, **options)


EDITS: dict[str, Callable[[], Shape]] = {
    "a function's body": lambda: Shape(last=[Step("last1", Typed()), Step("last2", OTHER_BODY)]),
    "a new field of the context": lambda: Shape(context=MORE_FIELDS),
    "a field of the context removed": lambda: Shape(context=FEWER_FIELDS),
    "another type of a field of the context": lambda: Shape(context=RETYPED),
    "another type of a field of the context, with a migration": lambda: Shape(context=RETYPED, options={"context_migrations": {"1": to_text}}),
    "rename the first step": lambda: Shape(first=Step("renamed", Typed())),
    "rename the last step": lambda: Shape(last=[Step("last1", Typed()), Step("renamed", work)]),
    "insert a step at the beginning": lambda: Shape(before=[Step("new", work)]),
    "insert a step at the end": lambda: Shape(last=[Step("last1", Typed()), Step("last2", work), Step("new", work)]),
    "remove the first step": lambda: Shape(first=Step("", work)),
    "remove the last step": lambda: Shape(last=[Step("last1", Typed())]),
    "swap the last two steps": lambda: Shape(last=[Step("last2", work), Step("last1", Typed())]),
    "another context model": lambda: Shape(context=Widened),
    "another context model, whose fields do not fit": lambda: Shape(context=Narrow),
    "another context model, whose fields do not fit, with a migration": lambda: Shape(context=Narrow, options={"context_migrations": {"1": to_narrow}}),
    "no context model": lambda: Shape(context=None),
    "insert a step into the loop's body": lambda: Shape(body=[Step("b1", work), Step("new", work), Step("b2", work)]),
    "another agent in the loop's body": lambda: Shape(body=[Step("b1", work), Step("b2", rework)]),
    "another condition of the loop": lambda: Shape(condition=soon),
    "more rounds of the loop": lambda: Shape(max_loops=9),
    "a new branch": lambda: Shape(branches={"new": [Step("n1", work)]}),
    "a step at the end of a branch": lambda: Shape(left=[Step("l1", work), Step("l2", work), Step("l3", work)]),
    "another agent in a branch": lambda: Shape(left=[Step("l1", work), Step("l2", rework)]),
    "the prompt of the first step": lambda: Shape(first=Step("first", Typed(system_prompt="Be kind."))),
    "the prompt of the second-last step": lambda: Shape(last=[Step("last1", Typed(system_prompt="Be kind.")), Step("last2", work)]),
    "the model of the first step": lambda: Shape(first=Step("first", Typed(model="test:two"))),
    "the output type of the first step": lambda: Shape(first=Step("first", Typed(output_type=Note))),
    "the output type of the second-last step": lambda: Shape(last=[Step("last1", Typed(output_type=Note)), Step("last2", work)]),
    "retries of the step in backoff": lambda: Shape(tried=Step("tried", Tried(), config=StepConfig(max_retries=5))),
    "timeout of the first step": lambda: Shape(first=Step("first", Typed(), config=StepConfig(timeout_s=9))),
    "the sink of the first step": lambda: Shape(first=Step("first", Typed(), sink_to="kept")),
    "the sink of the last step": lambda: Shape(last=[Step("last1", Typed()), Step("last2", work, sink_to="kept")]),
    "the question's message": lambda: Shape(ask=HumanInTheLoopStep("ask", "Really go on?")),
    "the question's schema": lambda: Shape(ask=HumanInTheLoopStep("ask", "Go on?", input_schema=str)),
    "another agent in the imported pipeline": lambda: Shape(inner=[Step("i1", rework), Step("i2", work)]),
    "a step at the end of the imported pipeline": lambda: Shape(inner=[Step("i1", work), Step("i2", work), Step("i3", work)]),
    "a step at the beginning of the imported pipeline": lambda: Shape(inner=[Step("i0", work), Step("i1", work), Step("i2", work)]),
    "the import's default": lambda: Shape(default="other"),
    "another kind of step at the end": lambda: Shape(last=[Step("last1", Typed()), LoopStep("last2", body=Step("x", work), exit_condition_callable=twice)]),
    "the pipeline's version": lambda: Shape(options={"version": "2"}),
}  # fmt: skip

STATES = {
    "queued": ("", "first", 1),
    "between steps": ("", "tried", 1),
    "in backoff": ("", "tried", 2),
    "in a fan-out": ("fan/left", "l2", 1),
    "in a loop": ("loop#2", "b2", 1),
    "paused": ("", "ask", 1),
    "in a child run": ("child/body", "i2", 1),
}
"""Where each state stands: address, step and number of the attempt that is next."""


@dataclass(frozen=True)
class Fate:
    """The result of a run: it continued, or was parked, for the rule that stands there."""

    word: str
    status: str
    told: tuple[str, ...] = ()
    reason: str | None = None


@contextmanager
def standing(state: str) -> Iterator[tuple[LocalEngine, str, Pipeline]]:
    """An engine with a run that is in a state."""
    old = Shape().pipeline()
    with LocalEngine() as engine:
        deploy(engine, old, old)
        run = engine.enqueue(old, "x")
        address, step, number = STATES[state]
        while not _is_at(engine, run, address, step, number):
            _go_on(engine, run)
        yield engine, run, old
        _name(Rounds)


def _is_at(engine: LocalEngine, run: str, address: str, step: str, number: int) -> bool:
    runs = [run, *(each.id for each in engine.children(run))]
    return any(
        each.ended_at is None and (each.address, each.step, each.number) == (address, step, number)
        for each in (row for one in runs for row in engine.history(one))
    )


def _go_on(engine: LocalEngine, run: str) -> None:
    """Do one thing: deliver a message, answer a question, or skip a wait."""
    if engine.bus:
        engine.deliver(engine.bus.popleft())
    elif approvals := engine.approvals(run):
        engine.stores.client.answer(approvals[0].key, Packed.of(encode("yes")))
    else:
        engine.now = max(engine.now, min(engine.stores.reads.waiting()))
        assert engine.sweep(), "the run stands still"  # one wait at a time


def fate(state: str, edit: str) -> Fate:
    """Deploy an edit while a run is in a state, and see it to its end, or to where it is parked."""
    with standing(state) as (engine, run, old):
        rule = _rule(engine, run, old, EDITS[edit]().pipeline())
        deploy(engine, old, EDITS[edit]().pipeline())
        see_through(engine, run)
        record = engine.stores.reads.read_run(run)
        parked = [each for each in (record, *engine.children(run)) if each.status == "parked"]
        told = tuple(str(each.data["changes"]) for each in _events(engine, run) if each.name == "run.carried_on")
        if not parked:
            return Fate("continues" if told else "same plan", record.status, told)
        reason = parked[0].reason
        deploy(engine, old, old)
        for each in parked:
            engine.stores.plan_moves.unpark(each.id, "w")
        see_through(engine, run)
        return Fate(rule or "context fields", engine.stores.reads.read_run(run).status, told, reason)


def deploy(engine: LocalEngine, old: Pipeline, new: Pipeline) -> None:
    """Deploy other code: its context model is what the name of the old one means from now on, and has been in use."""
    model, migrations = new.context_model, engine.attempts.preparation.migrations
    if model is not None:
        _name(model)
    for resolve in (engine.attempts._outcomes._resolve, migrations._bench.resolve):
        resolve._found.clear()
    engine.deploy(old, new)
    if model is not None:
        migrations.change(engine._local.loaded(f"local:{id(old)}"), model)


def _name(model: type[PipelineContext]) -> None:
    """Have the name of a model mean this one."""
    setattr(sys.modules[Rounds.__module__], model.__name__, model)


def _rule(engine: LocalEngine, run: str, old: Pipeline, new: Pipeline) -> str | None:
    before, after = compile_plan(old), compile_plan(new)
    for each in (run, *(child.id for child in engine.children(run))):
        state = engine.stores.plan_moves.run_state(each)
        assert state is not None
        found = compatible(before, after, replace(state))
        if found:
            return found[0].rule
    return None


def see_through(engine: LocalEngine, run: str) -> None:
    """Do all there is to do, and answer questions."""
    engine.drain()
    while approvals := engine.approvals(run):
        if engine.stores.reads.read_run(run).status == "parked":
            return
        engine.answer(run, "yes", step=approvals[0].step)


def _events(engine: LocalEngine, run: str) -> list[Any]:
    return [each for one in (run, *(child.id for child in engine.children(run))) for each in engine.story(one)]


def table() -> str:
    """Write two tables: the edits with one fate in every state, and those whose fate depends on the state."""
    words = {edit: [fate(state, edit).word for state in STATES] for edit in EDITS}
    same: dict[str, list[str]] = {}
    for edit, found in words.items():
        if len(set(found)) == 1:
            same.setdefault(found[0], []).append(edit)
    lines = [
        "| in every state | edits |",
        "|---|---|",
        *(f"| {word} | {'; '.join(edits)} |" for word, edits in same.items()),
        "",
    ]
    lines += ["| edit | " + " | ".join(STATES) + " |", "|---" * (len(STATES) + 1) + "|"]
    lines += [f"| {edit} | {' | '.join(found)} |" for edit, found in words.items() if len(set(found)) > 1]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the table into its page."""
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    import changing_code  # under the name that workers import its models by

    changing_code.write()
