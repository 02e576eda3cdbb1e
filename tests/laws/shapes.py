"""The corpus: every shape of pipeline the laws are held to, and a driver that treats its messages badly.

Agents are functions of their input, context and guidance alone, so that doing something twice gives the same answer; what an
attempt may see of the ones before it is the guidance.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite
from typing import Any

from pydantic import BaseModel

from flujo_client.config.manager import Settings
from flujo_client.contract.commands import ExecutedCommandLog
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Outcome
from flujo_client.errors import AgentIOValidationError, PipelineAbortSignal
from flujo_client.pipeline.event import WaitForEvent
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.sleep import Sleep
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.domain.values import AttemptReport, Decision
from flujo_worker.testing import LocalEngine
from tests.support.builders import member, packed

LIVE = ("ready", "queued", "running", "paused")
SETTINGS = Settings(worker={"max_lost": 1000}, limits={"snapshot_inline_bytes": 300})


class Book(BaseModel):
    """The context of every shape."""

    total: int = 0
    notes: list[str] = []


def add(data: str, *, context: Book) -> dict[str, Any]:
    """Give what the next step reads and the context keeps."""
    context.notes.append("scribbled in the attempt's own copy")
    return {"total": context.total + len(data), "notes": [*context.notes[:-1], data[-3:]]}


def tell(data: Any) -> str:
    """Give text, whatever came."""
    return f"told {data}"


class Stubborn:
    """Fails until its guidance says it has failed often enough. It scribbles into its context before it fails."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def run(self, data: Any, *, context: Book, guidance: str | None = None) -> str:
        tried = int(re.findall(r"try (\d+)", guidance or "try 0")[-1])
        if tried < self.times:
            context.total, context.notes = -1, ["never merged"]
            raise AgentIOValidationError(f"try {tried + 1}")
        return f"{data} after {tried}"


def abort(data: Any) -> Any:
    """Stop the run from inside."""
    raise PipelineAbortSignal("that is enough")


def refuse(output: Any) -> bool:
    """Refuse every output."""
    return False


def pipeline(*steps: Step) -> Pipeline:
    return Pipeline(list(steps), name="shape", context_model=Book)


def step(name: str, agent: Any, *, max_retries: int = 3, **rest: Any) -> Step:
    return Step(name, agent, config=StepConfig(max_retries=max_retries), **rest)


def enough(data: Any, context: Book) -> bool:
    """Stop a loop."""
    return context.total >= 20


def is_broken(data: Any, context: Book) -> bool:
    """A loop's condition that fails at the second iteration, when the first one's writes are kept."""
    if len(context.notes) > 1:
        raise LookupError("a condition failed")
    return False


def is_long(data: Any, context: Book) -> bool:
    """Choose a path."""
    return len(str(data)) > 6


ADDING = [step("x", add, updates_context=True), step("y", tell)]

SHAPES: dict[str, Pipeline] = {
    "one": pipeline(step("a", tell)),
    "adding": pipeline(step("a", add, updates_context=True), step("b", tell), step("c", add, updates_context=True)),
    "stumbling": pipeline(step("a", Stubborn(2)), step("b", add, updates_context=True), step("c", Stubborn(1))),
    "failing": pipeline(step("a", add, updates_context=True), step("b", Stubborn(9)), step("c", tell)),
    "refused": pipeline(step("a", add, updates_context=True), step("b", tell, validators=[refuse]), step("c", tell)),
    "aborted": pipeline(step("a", tell), step("b", abort), step("c", tell)),
    "large": pipeline(step("a", lambda data: data * 200, sink_to="notes_text"), step("b", tell)),
    "long": pipeline(*(step(f"s{number}", tell) for number in range(8))),
    "looping": pipeline(
        step("a", tell), Step.loop_until("l", pipeline(*ADDING), exit_condition_callable=enough, max_loops=9)
    ),
    "branching": pipeline(
        Step.parallel("p", {"i": pipeline(*ADDING), "j": step("j", Stubborn(1)), "k": step("k", tell)}), step("z", tell)
    ),
    "lanes": pipeline(
        Step.parallel("p", {f"b{number}": pipeline(*ADDING) for number in range(5)}, max_concurrency=2), step("z", tell)
    ),
    "deep": pipeline(
        Step.parallel(
            "p",
            {
                "i": pipeline(Step.parallel("q", {"m": pipeline(*ADDING), "n": step("n", tell)}), step("o", tell)),
                "j": pipeline(
                    Step.loop_until("l", pipeline(*ADDING), exit_condition_callable=enough, max_loops=3),
                    Step.branch_on("c", is_long, {True: step("t", tell), False: step("f", tell)}),
                ),
            },
        ),
        step("z", tell),
    ),
    "spoilt": pipeline(
        step("a", tell),
        Step.parallel("p", {"i": pipeline(*ADDING), "j": step("j", tell, validators=[refuse]), "k": step("k", tell)}),
        step("z", tell),
    ),
    "forgiving": pipeline(
        Step.parallel(
            "p", {"i": pipeline(*ADDING), "j": step("j", tell, validators=[refuse])}, on_branch_failure="ignore"
        ),
        step("z", tell),
    ),
    "cached": pipeline(
        Step.cached(step("a", add, updates_context=True)),
        Step.cached(step("t", tell)),
        Step.cached(Step.parallel("p", {"i": pipeline(*ADDING), "j": Step.cached(step("j", Stubborn(1)))})),
        Step.cached(step("b", Stubborn(9))).fallback(step("c", tell)),
    ),
    "launching": pipeline(
        step("a", add, updates_context=True),
        Step("b", Stubborn(1), config=StepConfig(max_retries=2, execution_mode="background")),
        step("c", tell),
        Step.parallel(
            "p", {"i": pipeline(*ADDING), "j": Step("j", tell, config=StepConfig(execution_mode="background"))}
        ),
        step("z", tell),
    ),
    "falling": pipeline(
        step("a", tell),
        Step.loop_until("l", pipeline(*ADDING), exit_condition_callable=is_broken, max_loops=3).fallback(
            step("b", Stubborn(9)).fallback(pipeline(*ADDING).as_step("c"))
        ),
        Step.parallel(
            "p", {"i": step("i", Stubborn(1)).fallback(step("x", tell)), "j": step("j", Stubborn(9))}
        ).fallback(Step.parallel("q", {"k": step("k", tell), "m": pipeline(*ADDING)}, max_concurrency=1)),
        step("z", tell),
    ),
}


def question(data: Any, context: Book) -> str:
    """What a person is asked."""
    return f"{data}, {context.total}?"


def asking(name: str) -> Step:
    return Step.human_in_the_loop(name, question)


SHAPES |= {
    "awaiting": pipeline(
        Step.parallel("p", {f"b{number}": pipeline(WaitForEvent("go"), step("s", tell)) for number in range(2)}),
        WaitForEvent("last", event="go", input_schema=str),
    ),
    "asking": pipeline(step("a", add, updates_context=True), asking("ask"), *ADDING),
    "waiting": pipeline(
        Step.parallel(
            "p",
            {f"b{number}": pipeline(step("s", tell), asking("ask"), *ADDING) for number in range(3)},
            max_concurrency=1,
        ),
        Step.loop_until("l", pipeline(asking("ask"), *ADDING), exit_condition_callable=enough, max_loops=3),
    ),
}


def nap(data: Any, context: Book) -> float:
    """How long a run sleeps: sometimes longer than a lane is kept."""
    return float(context.total)


SHAPES["sleeping"] = pipeline(
    *ADDING,
    Sleep("n", nap),
    Step.parallel(
        "p",
        {f"b{number}": pipeline(*ADDING, Sleep("n", nap), step("s", tell)) for number in range(3)},
        max_concurrency=1,
    ),
    step("m", tell),
    Step.loop_until("l", pipeline(*ADDING, Sleep("n", nap)), exit_condition_callable=enough, max_loops=3),
)


class Talk(Book):
    """A context that keeps a conversation."""

    conversation_history: list[Any] = []


def answer_all(data: Any, *, history: str | None = None) -> str:
    """Say something that depends on everything that was said."""
    return f"{data} after {(history or '').count('role')}"


def is_told(data: Any, context: Talk) -> bool:
    """Stop a conversation."""
    return len(context.conversation_history) > 10


SPEAKERS = {"i": step("i", answer_all), "j": pipeline(step("j", Stubborn(1)), step("k", answer_all))}
SHAPES |= {
    how: Pipeline(
        [
            Step.loop_until(
                "l",
                pipeline(step("s", answer_all), Step.parallel("p", SPEAKERS), step("m", len), asking("ask")),
                exit_condition_callable=is_told,
                conversation=True,
                ai_turn_source=how,
            ),
            step("z", tell),
        ],
        name="shape",
        context_model=Talk,
    )
    for how in ("last", "all_agents")
}


class LargeBook(Book):
    """A context with room for a long text."""

    notes_text: str = ""


SHAPES["large"] = replace(SHAPES["large"], context_model=LargeBook)


class Minutes(Book):
    """A context with room for a planner's turns."""

    command_log: list[ExecutedCommandLog] = []


def plan(brief: dict[str, Any], *, guidance: str | None = None) -> Any:
    """Have work done, name no one, ask, and finish; at first it says no command."""
    commands = [
        {"type": "run_agent", "agent_name": "work", "input_data": brief["goal"]},
        {"type": "run_agent", "agent_name": "wrok", "input_data": None} if guidance else "I had better not say",
        {"type": "ask_human", "question": "go on?"},
        {"type": "finish", "final_answer": [each["result"] for each in brief["command_log"]]},
    ]
    return commands[len(brief["command_log"])]


PLANNED = Step.agentic_loop("g", plan, {"work": pipeline(*ADDING, step("s", Stubborn(2)))}, on_agent_failure="tell")
SHAPES["planning"] = replace(pipeline(step("a", tell), PLANNED, step("z", tell)), context_model=Minutes)


def send_some(client: Any, run: str) -> None:
    """Send a run an event of each name that it waits for, the same id twice, if it takes any."""
    state, number = client.event_state(run, "", ""), len(client._t.sent_events)
    for name in state.names if state.is_live else ():
        assert [client.send(run, name, f"{number}", packed("event")) for _ in range(2)] == [True, False]


class Rough(LocalEngine):
    """An engine whose messages can be lost, doubled and shuffled, whose workers die, and which remembers every notice."""

    def __init__(self, shape: str) -> None:
        super().__init__(SETTINGS)
        self.notices: list[AttemptReport] = []
        self.decisions: list[Decision] = []
        self._shape, self._ghosts = shape, 0
        merge, self.conclude, commit = self.coordinator.merge, self.coordinator.conclude, self.stores.attempts.commit

        async def remember(notice: AttemptReport, *plan: Any) -> Any:
            if notice.envelope.ticket.run == self.run_id:  # what it launches is looked at elsewhere
                self.notices.append(notice)
            return await merge(notice, *plan)

        def record(decision: Decision) -> Any:
            if decision.notice.envelope.ticket.run == self.run_id:
                self.decisions.append(decision)
            return commit(decision)

        self.coordinator.merge = remember  # type: ignore[method-assign]
        self.stores.attempts.commit = record  # type: ignore[method-assign]
        self.commit = commit
        self.run_id = self.enqueue(SHAPES[shape], "bees")

    @property
    def is_live(self) -> bool:
        return self.stores.reads.read_run(self.run_id).is_live

    @property
    def live(self) -> list[Any]:
        return [each for each in self.history(self.run_id) if each.status in LIVE]

    @property
    def has_a_way_on(self) -> bool:
        """A live run has work, a question open, or a fan-out to ring for; one that has ended has none; and a scope has one owner at most (law 6)."""
        owners = [each.address for each in self.live]
        if len(owners) != len(set(owners)):
            return False
        waiting = [each for each in self.stores.reads.read_scopes(self.run_id) if each.status == "open"]
        return bool(owners or waiting) if self.is_live else not owners

    def deliver_at(self, place: int) -> None:
        """Deliver one of the messages that are out."""
        if self.bus:
            self.bus.rotate(-(place % len(self.bus)))
            self.deliver(self.bus.popleft())

    def double(self, place: int) -> None:
        if self.bus:
            self.bus.append(self.bus[place % len(self.bus)])

    def drop(self, place: int) -> None:
        if self.bus:
            del self.bus[place % len(self.bus)]

    def wait(self, seconds: float) -> None:
        """Let time pass, and people answer, then sweep."""
        self.now += seconds
        for question in self.stores.reads.read_questions(self.run_id):
            if question.state == "open":
                self.stores.client.answer(question.key, packed(f"answer to {question.message}"))
                assert not self.stores.client.answer(question.key, packed("too late"))
        send_some(self.stores.client, self.run_id)
        self.stores.backlog.hand_over_events(1)
        self.recover()
        self.sweep(may_judge=True)

    def haunt(self) -> None:
        """Another worker claims what is live, and dies: its outcome comes late, under an old fence."""
        self._ghosts += 1
        name = f"ghost-{self._ghosts}"
        self.stores.leases.register_worker(member(name), 5.0)
        sent = [
            each for each in self.live if isfinite(self.stores.tables.attempts[each.key].available_at)
        ]  # held rows have no message
        for each in sent:
            claim = self.stores.attempts.claim(each.key, name, max_lost=1000)
            if claim.fence is not None:
                self.notices.append(self._zombie(each.key, claim.fence))
        self.now += 6.0

    def settle(self) -> None:
        """Give it all the time it needs; an engine that lost track of its run is stuck here."""
        for _ in range(300):
            while self.bus:
                self.deliver(self.bus.popleft())
            if not self.is_live:
                return
            self.wait(100.0)
        raise AssertionError(f"stuck: {self.history(self.run_id)}")

    def _zombie(self, key: str, fence: int) -> AttemptReport:
        return AttemptReport(self.envelope_of(key), fence, Outcome("success", packed("late"), packed({"late": True})))

    def envelope_of(self, key: str) -> Envelope:
        return self.stores.tables.envelope(self.stores.tables.attempts[key])

    def kept(self, address: str) -> tuple[int, bytes | None, bytes]:
        """A scope's version, context and output; a closed one keeps no context, but for the root's."""
        scope = self.stores.tables.scopes[self.run_id, address]
        return scope.version, scope.context and bytes(scope.context), bytes(scope.output)

    def picture(self) -> Any:
        """All that may not change; what was spent and told may."""
        return replace(self.stores.reads.read_run(self.run_id), tokens=0, cost_usd=0.0), [
            replace(each, tokens=0, cost_usd=0.0) for each in self.history(self.run_id)
        ]

    def story_of_it(self) -> Any:
        """The result of it, without names and times. Where a fan-out was aborted, how far the siblings had come is left to chance."""
        result = self.result(self.run_id)
        steps = [
            (each.key, each.status, each.reason, each.output, each.fault and each.fault.feedback)
            for each in self.history(self.run_id)
            if not (self._shape == "spoilt" and each.address.startswith("p/"))
        ]
        return (
            result.run_status,
            result.unchecked().output,
            result.final_pipeline_context,
            result.error,
            _unnamed(steps, self.run_id),
        )


def _unnamed(steps: list[tuple[Any, ...]], run_id: str) -> list[tuple[Any, ...]]:
    return sorted(((key.removeprefix(run_id), *rest) for key, *rest in steps), key=lambda step: step[0])
