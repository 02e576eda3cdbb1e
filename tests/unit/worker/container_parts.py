"""Parts of the tests of containers: a context, agents, an engine with a visible bus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from flujo_client.config.manager import Settings
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Usage
from flujo_client.contract.results import PipelineResult, StepResult
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_client.serial import dumps, loads
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.domain.values import FanOut
from flujo_worker.testing import LocalEngine

SPENT = Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25)
QUICK = Settings(agents={"function_timeout_s": 0.5})
ONCE = StepConfig(max_retries=0)
TWICE = StepConfig(max_retries=1, backoff=Backoff(base_s=7.0, jitter=0.0))


class Notes(PipelineContext):
    """The context of most of these pipelines."""

    count: int = 0
    seen: list[Any] = Field(default_factory=list)
    title: str = ""
    items: Any = ()


def echo(data: Any) -> Any:
    """Give what came."""
    return data


def more(data: int) -> int:
    """Give one more than what came."""
    return data + 1


def fails(data: Any) -> Any:
    """Fail permanently."""
    raise NonRetryableError(f"no {data}")


def paid(data: Any) -> Any:
    """Give what came, for `SPENT`."""
    return AgentAnswer(data, SPENT)


def raises(*_: Any, **__: Any) -> Any:
    """A mapper or condition that is broken."""
    raise KeyError("a bug")


def note(**changes: Any) -> Callable[..., Any]:
    """An agent that writes these fields, and gives what came."""

    def agent(data: Any, *, context: Any) -> Any:
        for name, value in changes.items():
            setattr(context, name, value)
        return data

    return agent


def seen(data: Any, *, context: Any) -> Any:
    """An agent that writes down what came."""
    context.seen = [*context.seen, data]
    context.count += 1
    return data


class Flaky:
    """Fails the first times it is called."""

    def __init__(self, times: int) -> None:
        self.times, self.calls = times, 0

    def run(self, data: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"try {self.calls}")
        return data


class Spy:
    """A function of a container, which remembers what it was asked."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer, self.asked = answer, []

    def __call__(self, *given: Any) -> Any:
        self.asked.append(given)
        return self.answer(*given)


def step(name: str, agent: Any = echo, **rest: Any) -> Step:
    """A step that is tried once, unless it says otherwise."""
    return Step(name, agent, config=rest.pop("config", ONCE), **rest)


def of(*steps: Step, model: Any = Notes) -> Pipeline:
    """A pipeline with a context."""
    return Pipeline(list(steps), context_model=model)


def bare(*steps: Step) -> Pipeline:
    """A pipeline without a context, unless it is given one."""
    return Pipeline(list(steps))


def at(result: PipelineResult, *names: str) -> StepResult:
    """The step result under these names."""
    history = result.step_history
    for name in names:
        found = next(each for each in history if each.name == name)
        history = found.step_history
    return found


def scopes(engine: LocalEngine, result: PipelineResult) -> dict[str, str]:
    """Each scope's status by its address."""
    return {each.address: each.status for each in engine.stores.reads.read_scopes(result.run_id)}


def assert_attributed(engine: LocalEngine, result: PipelineResult, path: str, type_name: str, said: str) -> None:
    """The run has failed with this class and these words; the feedback names the node, and nothing is left open."""
    assert (result.run_status, result.error.type_name) == ("failed", type_name)
    assert said in result.error.message
    assert path in result.step_history[-1].feedback
    assert said in result.step_history[-1].feedback
    assert "open" not in scopes(engine, result).values()
    assert not [each for each in engine.history(result.run_id) if each.status in ("ready", "queued", "running")]


class WatchedEngine(LocalEngine):
    """Notes every message's size by its address, and how many branches of a fan-out had one on the bus at most."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.sizes: dict[str, int] = {}
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        super().__init__(settings)

    def _send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None = None, *, first: bool = False) -> None:
        for envelope in envelopes:
            self.sizes[envelope.address] = len(dumps(envelope.to_wire()))
            for place in sorted(envelope.lanes, key=len)[-1:]:
                self._now[place] += envelope.kind != "join"
                self.most[place] = max(self.most[place], self._now[place])
        super()._send(envelopes, fan_out, first=first)

    def deliver(self, message: bytes) -> str:
        """Take it from the bus."""
        lanes = loads(message).get("lanes") or ()
        for place in sorted(lanes, key=len)[-1:]:
            self._now[place] -= 1
        return super().deliver(message)
