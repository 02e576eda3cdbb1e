"""A recorded run as a test: its input, the context it began with, and what its models and people answered.

    recorded = RecordedRun.read("run_01...")
    result = recorded.rerun(engine)

The code is the present one, all of it but the agents that ask models: each attempt of theirs ends as the recorded attempt of the same
key did. It must not ask a model. In: a run's records, from Postgres or a file. Out: a result of `LocalEngine`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flujo_client.address import AttemptKey
from flujo_client.api.client import FlujoClient
from flujo_client.attempt_info import current_attempt
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import AttemptRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import NonRetryableError, ReplayError
from flujo_client.gateway import plan_requests, requests
from flujo_client.pipeline.fork import Beginning
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import load_pipeline
from flujo_client.pipeline.step import AgentProcessors, Step
from flujo_client.serial import Packed, Resolver, decode
from flujo_worker.agents.factory import asks_by_library
from flujo_worker.runtime.call_args import unwrap

if TYPE_CHECKING:
    from flujo_worker.testing.local_engine import LocalEngine

MOST_CHILDREN = 100_000
Fetch = Callable[[Collection[str]], Mapping[str, Packed]]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The beginning of a run, and the ends of its attempts.

    Attributes:
        run: its id.
        reference: its pipeline's.
        input: in stored form.
        context: the initial one, likewise; None without one.
        attempts: by key, the `output` in stored form, or the `fault`; also those of its child runs.
    """

    run: str
    reference: str
    input: Any
    context: Any
    attempts: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, run_id: str, *, client: FlujoClient | None = None) -> Self:
        """Read a run from Postgres.

        Args:
            run_id: any run, live or ended.
            client: reads from its services; those of the settings in force when None.

        Raises:
            RunNotFound: there is no such run.
            ReplayError: its beginning, or an output, is no longer stored.
        """
        if client is None:
            with FlujoClient() as opened:
                return cls.read(run_id, client=opened)
        ticket = client.ask(plan_requests.retryable_run(run_id)).ticket
        attempts, runs = list[AttemptRecord](), [run_id]
        for run in runs:
            attempts += client.ask(requests.attempts(run))
            runs += [each.id for each in client.list_runs(parent=run, limit=MOST_CHILDREN)]
        beginning = client.ask(plan_requests.beginning(run_id, 0, ()))
        return cls.of(run_id, ticket.reference, beginning, attempts, lambda each: client.ask(requests.blobs(each)))

    @classmethod
    def of(
        cls, run: str, reference: str, beginning: Beginning | None, attempts: Sequence[AttemptRecord], fetch: Fetch
    ) -> Self:
        """Make it of records; raises ReplayError for a value that is not stored."""
        if beginning is None:
            raise ReplayError(f"run {run} cannot be rerun: its starting state was not stored")
        outputs = [each.output for each in attempts]
        packed = [each for each in (beginning.input, beginning.context, *outputs) if each is not None]
        digests = {each.digest for each in packed if each.is_reference}
        blobs = fetch(digests) if digests else {}

        def tree(value: Packed | None) -> Any:
            if value is None or not value.is_reference:
                return None if value is None else value.tree()
            if value.digest not in blobs:
                raise ReplayError(f"run {run} cannot be rerun: a value of it has been deleted ({value.digest[:12]}…)")
            return blobs[value.digest].tree()

        ended = {each.key: _ended(each, tree) for each in attempts}
        return cls(run, reference, tree(beginning.input), tree(beginning.context), ended)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote; raises ReplayError for anything else."""
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            advice = "write it with RecordedRun.read(run_id).save(path)"
            raise ReplayError(f"'{path}' is not a recorded run", suggestion=advice, cause=error) from error

    def save(self, path: Path | str) -> None:
        """Write it to a JSON file, values included: look at what it holds before you share it."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def rerun(self, engine: LocalEngine, pipeline: Pipeline | None = None) -> PipelineResult:
        """Run it again in an engine that has not run it yet, to its end or to a question without a recorded answer.

        An attempt of an agent that asks a model, but was not recorded, fails and says so: the present code reached another place.

        Args:
            engine: where to run it.
            pipeline: the present code; what the recorded reference names when None.

        Raises:
            PipelineError: the reference names no pipeline that may be imported here.
        """
        allowed = engine.settings.allowed_imports
        if pipeline is None:
            pipeline = load_pipeline(self.reference, allowed=allowed)
        resolve = Resolver(allowed)
        value, context = (decode(each, resolve=resolve) for each in (self.input, self.context))
        with engine.standing_in(lambda step, agent: self._stand_in(step, agent, resolve)):
            engine.enqueue(pipeline, value, context=context, run_id=self.run)
            engine.drain()
            while self._answer(engine):
                engine.drain()
        return engine.result(self.run)

    def _answer(self, engine: LocalEngine) -> bool:
        """Give the recorded answers to the open questions; return whether there were any."""
        answered = [(each.key, self.attempts.get(each.key, {})) for each in engine.approvals(self.run)]
        given = [engine.stores.client.answer(key, Packed.of(how["output"])) for key, how in answered if "output" in how]
        return any(given)

    def _stand_in(self, step: Step, agent: Any, resolve: Resolver) -> Step:
        """Return the step with its recorded outputs for an agent that asks a model; they have passed its checks and processors."""
        if not asks_by_library(unwrap(agent)):
            return step
        bare: dict[str, Any] = {"processing": None, "processors": AgentProcessors(), "plugins": (), "validators": ()}
        return replace(step, agent=_RecordedAgent(self, resolve), **bare)


class _RecordedAgent:
    """Ends each attempt as the recorded one ended."""

    def __init__(self, recorded: RecordedRun, resolve: Resolver) -> None:
        self._recorded, self._resolve = recorded, resolve

    async def run(self, _: Any) -> Any:
        attempt = current_attempt()
        assert attempt is not None, "a step's agent is called in an attempt"
        ended = self._recorded.attempts.get(attempt.key)
        if ended is not None and "output" in ended:
            return decode(ended["output"], resolve=self._resolve)
        if ended is not None and "fault" in ended:
            fault = Fault.from_tree(ended["fault"])
            raise (RuntimeError if fault.retryable else NonRetryableError)(f"{fault.type_name}: {fault.message}")
        place = AttemptKey.parse(attempt.key)
        what = "was not recorded" if ended is None else f"was recorded as {ended['status']}, without an output"
        raise NonRetryableError(
            f"attempt {place.number} of step '{place.step}' at '{place.address or '/'}' {what} in run {self._recorded.run}",
            suggestion="the present code reached a place that the recorded run did not; "
            "test what is new with a model of your own, by `agent.override(model=…)`",
            code="NOT_RECORDED",
        )


def _ended(attempt: AttemptRecord, tree: Callable[[Packed | None], Any]) -> dict[str, Any]:
    how: dict[str, Any] = {"status": attempt.status}
    if attempt.output is not None:
        how["output"] = tree(attempt.output)
    if attempt.fault is not None:
        how["fault"] = attempt.fault.to_tree()
    return how
