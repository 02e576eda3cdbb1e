"""Pipelines of anything nested in anything, one for each seed: `p_1234`, the same in every process.

A worker finds them by reference, as `closure_pipelines:p_1234`, or `q_1234` with questions to people in it. Small seeds make small pipelines.
"""

import re
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from closure_parts import (
    ACTS,
    GIFTS,
    LEDGER_ONLY,
    Bare,
    Choice,
    Condition,
    Critic,
    Fold,
    LastWord,
    Ledger,
    Loose,
    Mapper,
    Original,
    Question,
    Refusal,
    Selector,
    Worker,
    total,
)

from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.machine import StateMachineStep, Transition
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import MergeStrategy, ParallelStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_client.pipeline.step import Step, StepConfig


class Maker:
    """Makes the pipeline of one seed.

    Args:
        seed: also how much it may hold: the larger, the more.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._left = 1 + seed.bit_length()

    def pipeline(self) -> Pipeline:
        """Make it. One in twelve has no context."""
        model = None if self._chance(12) else Bare if self._chance(6) else Ledger
        body = self.body(model, 4)
        return replace(body, name="closure", context_model=model)

    def body(self, model: Any, depth: int) -> Pipeline:
        return Pipeline([self.step(f"s{place}", model, depth) for place in range(self._draw.choice((1, 1, 2, 2, 3)))])

    def step(self, name: str, model: Any, depth: int) -> Step:
        """Make a step; one in six has another to fall back on, which may have one too."""
        made = self._alone(name, model, depth)
        return made.fallback(self.step(f"{name}f", model, max(depth - 1, 0))) if self._chance(6) else made

    def _alone(self, name: str, model: Any, depth: int) -> Step:
        self._left -= 1
        if self._left <= 0 or depth == 0 or self._chance(4):
            return self._leaf(name, model)
        kinds = ["loop", "parallel", "parallel", "router", "conditional", "nested", "machine", "refine"]
        kind = self._draw.choice(kinds if model is None else [*kinds, "map", "map"])
        made: Step = getattr(self, f"_{kind}")(name, model, depth - 1)
        return made

    def _leaf(self, name: str, model: Any) -> Step:
        if issubclass(model or Bare, Ledger) and self._chance(10):
            before = [f"s{place}" for place in range(int(name[1:]))] if name[1:].isdecimal() else []
            return Step.gather(name, before or ["s0"])
        gives = self._draw.choice([*GIFTS, "text"])
        options: dict[str, Any] = {}
        if model is not None:
            options["updates_context"] = gives == "update" or self._chance(60)
            sinks = (None, None, None, "last", "word" if gives == "text" or self._chance(9) else None)
            options["sink_to"] = self._draw.choice(sinks if model is Loose else (*sinks, "marks.sunk"))
        if self._chance(12):
            options["validators"] = [Refusal(self._salt())]
        agent = Worker(
            self._salt(),
            self._acts(model),
            gives,
            stumbles=self._chance(6),
            breaks=7 * self._chance(6),
            aborts=9 * self._chance(12),
        )
        return Step(name, agent, config=StepConfig(max_retries=self._draw.randint(0, 2)), **options)

    def _acts(self, model: Any) -> tuple[str, ...]:
        acts = [act for act in ACTS if act not in LEDGER_ONLY or (model is not None and model is not Bare)]
        return tuple(self._draw.sample(acts, self._draw.randint(0, 3)))

    def _loop(self, name: str, model: Any, depth: int) -> Step:
        draw = self._draw.random
        return LoopStep(
            name,
            loop_body_pipeline=self.body(model, depth),
            exit_condition_callable=Condition(self._salt()),
            max_loops=self._draw.randint(1, 3),
            initial_input_to_loop_body_mapper=Mapper(self._salt()) if draw() < 0.3 else None,
            iteration_input_mapper=self._draw.choice((None, Mapper(self._salt()), Original(self._salt()))),
            loop_output_mapper=LastWord(self._salt()) if draw() < 0.5 else None,
            fails_at_max=draw() < 0.1,
        )

    def _refine(self, name: str, model: Any, depth: int) -> Step:
        critic = Step("critic", Critic(self._salt())) if self._draw.random() < 0.9 else self._leaf("critic", model)
        return Step.refine_until(name, self.body(model, depth), critic, self._draw.randint(1, 3))

    def _map(self, name: str, model: Any, depth: int) -> Step:
        options = self._together(model) if self._chance(2) else {}
        options.pop("context_include_keys", None)
        side_by_side = {"parallel": True, **options} if options else {}
        iterable = "word" if self._chance(30) else "items"
        return MapStep(name, pipeline_to_run=self.body(model, depth), iterable_input=iterable, **side_by_side)

    def _together(self, model: Any) -> dict[str, Any]:
        """The options of all fan-outs."""
        strategies = [*MergeStrategy, MergeStrategy.CONTEXT_UPDATE, *(() if model is None else (Fold(self._salt()),))]
        fields = ["count", "notes", "marks", "items"]
        return {
            "merge_strategy": self._draw.choice(strategies),
            "on_branch_failure": self._draw.choice(("propagate", "ignore", "ignore")),
            "max_concurrency": self._draw.choice((None, None, 1, 2)),
            "context_include_keys": self._draw.sample(fields, 2) if model is not None and self._chance(5) else None,
        }

    def _branches(self, model: Any, depth: int) -> dict[str, Any]:
        """The branches, and what goes with them."""
        names = ["b0", "b1", "b2"][: self._draw.choice((0, 1, 2, 2, 3, 3))]
        mapping = {name: ["count", "marks", "b0"][: self._draw.randint(0, 3)] for name in names[:1]}
        if model is Bare:
            mapping = {name: [field for field in fields if field != "b0"] for name, fields in mapping.items()}
        reducers = (*(None,) * 6, "keys", "values", "concat", "first", "last", total, *(["union"] * self._chance(3)))
        return {
            "branches": {name: self.body(model, depth) for name in names},
            "field_mapping": mapping if model is not None and self._chance(6) else None,
            "ignore_branch_names": bool(self._chance(2)),
            "reduce": self._draw.choice(reducers),
            **self._together(model),
        }

    def _parallel(self, name: str, model: Any, depth: int) -> Step:
        return ParallelStep(name, **self._branches(model, depth))

    def _router(self, name: str, model: Any, depth: int) -> Step:
        agent = Selector(self._salt(), self._acts(model), stumbles=self._chance(6), breaks=9 * self._chance(5))
        return DynamicParallelRouterStep(name, router_agent=agent, **self._branches(model, depth))

    def _conditional(self, name: str, model: Any, depth: int) -> Step:
        keys = self._draw.choice((("left", "right"), (True, False), (1, 2)))
        return ConditionalStep(
            name,
            condition_callable=Choice(self._salt(), (*keys, *keys, *keys, *keys, "elsewhere")),
            branches={key: self.body(model, depth) for key in keys},
            default_branch_pipeline=self.body(model, depth) if self._chance(2) else None,
            branch_input_mapper=Mapper(self._salt()) if self._chance(4) else None,
            branch_output_mapper=Mapper(self._salt()) if self._chance(4) else None,
        )

    def _nested(self, name: str, model: Any, depth: int) -> Step:
        inherits = bool(self._chance(2))
        own = self._draw.choice((Ledger, Bare)) if model is None else self._draw.choice((Ledger, Bare, None))
        inside = model if inherits else own
        body = self.body(Loose if inside is None and not inherits else inside, depth)
        outputs: list[Any] = [None, None, []]
        if model is not None and inside is not None:
            outputs.append([("count", "count"), ("word", "marks.handed")])
        return ImportStep(
            name,
            pipeline=body if inherits else replace(body, context_model=own),
            inherit_context=inherits,
            input_to=self._draw.choice(("initial_prompt", "both")) if inside is Ledger else "initial_prompt",
            outputs=self._draw.choice(outputs),
            on_failure=self._draw.choice(("abort", "skip", "continue_with_default")),
            default=self._draw.choice((None, {"by": "default"})),
        )

    def _machine(self, name: str, model: Any, depth: int) -> Step:
        states = {state: self.body(model, depth) for state in ("one", "two", "three")[: self._draw.randint(1, 3)]}
        known = [*states, "end"]
        transitions = [
            Transition(
                self._draw.choice([*states, "*"]),
                self._draw.choice(known),
                self._draw.choice(("success", "success", "failure")),
                Condition(self._salt(), 2) if self._chance(2) else None,
            )
            for _ in range(self._draw.randint(1, 4))
        ]
        ends = ["end", *([list(states)[-1]] if self._chance(2) else [])]
        transitions.append(Transition("*", "end", "success", Condition(self._salt(), 2)))
        return StateMachineStep(
            name,
            states=states,
            start_state="one",
            end_states=ends,
            transitions=transitions,
            max_visits=self._draw.randint(1, 4),
        )

    def _chance(self, one_in: int) -> int:
        return int(self._draw.randrange(one_in) == 0)

    def _salt(self) -> int:
        return self._draw.randrange(1_000_000)


class Peopled(Maker):
    """Makes pipelines in which many a step is a question to a person, and many an answer leads on from its state."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._pauses = Random(seed)  # of its own, so that what is drawn besides stays as it was

    def _machine(self, name: str, model: Any, depth: int) -> Step:
        made, draw = super()._machine(name, model, depth), self._pauses
        assert isinstance(made, StateMachineStep)
        states = list(made.states)
        when = Condition(draw.randrange(1_000_000), 2) if draw.random() < 0.5 else None
        leading = Transition(draw.choice([*states, "*"]), draw.choice([*states, "end"]), "pause", when)
        return replace(made, transitions=[*made.transitions, leading])

    def _leaf(self, name: str, model: Any) -> Step:
        if model is Loose or self._chance(2):  # a context that takes any field keeps times, which no reference knows
            return super()._leaf(name, model)
        sink = None if model is None else self._draw.choice((None, None, "last", "word"))
        return HumanInTheLoopStep(name, Question(self._salt()), sink_to=sink)


@cache
def peopled(seed: int) -> Pipeline:
    """The pipeline of a seed, with people in it."""
    return Peopled(seed).pipeline()


@cache
def pipeline_of(seed: int) -> Pipeline:
    """The pipeline of a seed."""
    return Maker(seed).pipeline()


def __getattr__(name: str) -> Pipeline:
    if not re.fullmatch(r"[pq]_\d+", name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return (pipeline_of if name[0] == "p" else peopled)(int(name[2:]))
