"""The results of a run: of steps, of the pipeline, and the outcomes that a stream yields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from flujo_client import errors
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.errors import ControlFlowError, RunCancelled, RunEnded, RunExpired, RunFailed

if TYPE_CHECKING:
    from flujo_client.contract.outcome import Fault

E = TypeVar("E", bound=BaseException)


class StepResult(BaseModel):
    """The result of one step over all its attempts."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str
    output: Any = None
    success: bool = True
    attempts: int = 1
    latency_s: float = 0.0
    token_counts: int = 0
    cost_usd: float = 0.0
    feedback: str | None = None
    branch_context: Any = None
    """The context after a container that succeeded; for a branch or a path in its `step_history`, the branch's own context before the
    merge. None for plain steps, for failures, and inside an iteration or an item."""
    metadata_: dict[str, Any] = Field(default_factory=dict)
    step_history: list[StepResult] = Field(default_factory=list)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the same as `metadata_`."""
        return self.metadata_


def track_parallel_costs(branch_results: Mapping[str, StepResult] | Sequence[StepResult]) -> tuple[float, int]:
    """Sum up the spend of a fan-out's successful branches: US dollars and tokens.

    A branch's figures include everything inside it. The spend of failed branches is part of the run's totals, and listed in the fan-out's
    `metadata_`.
    """
    results = branch_results.values() if isinstance(branch_results, Mapping) else branch_results
    counted = [each for each in results if each.success]
    return sum((each.cost_usd for each in counted), 0.0), sum(each.token_counts for each in counted)


class StepOutcome(BaseModel):
    """One thing that happened to a step, as `Flujo.run_stream` yields it."""


class Success(StepOutcome):
    """A step succeeded."""

    step_result: StepResult


class Failure(StepOutcome):
    """A step failed permanently."""

    feedback: str | None
    step_result: StepResult


class Chunk(StepOutcome):
    """A piece of text that a step's model or its own code says."""

    data: str
    step_name: str


class Paused(StepOutcome):
    """The run waits for a person's answer."""

    message: str
    """The question."""
    state_token: str | None = None
    """The token that answers it through `FlujoClient.answer`; None if the client has no signing key."""
    step: str = ""
    address: str = ""
    """`step`, `address`: identify the question, for `RunHandle.resume` if several are open."""


class BackgroundLaunched(StepOutcome):
    """A step was launched in the background: it is a separate run, with the id `task_id`."""

    task_id: str
    step_name: str


class Aborted(StepOutcome):
    """The run was stopped from inside by an error of control flow, cancelled or expired."""

    reason: str


class Failed(BaseModel):  # noqa: PLW1641 -- models are mutable and have no hash
    """Why a run ended as it did, with the original class, message and code.

    `traceback` is the user's part of the traceback, as text; empty if no user code took part. `details` are facts by name, such as a
    provider's HTTP status.
    """

    type_name: str = ""
    message: str = ""
    code: str = ""
    category: str = ""
    suggestion: str | None = None
    traceback: str = ""
    details: dict[str, Any] = Field(default_factory=dict)
    _raised: BaseException | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, fault: Fault) -> Failed:
        """Make it of what was recorded, and of the error itself where that was raised in this process."""
        failed = cls(**{name: getattr(fault, name) for name in cls.model_fields})
        failed._raised = fault.raised
        return failed

    def __eq__(self, other: object) -> bool:
        """Compare what is recorded: the error itself is another object each time, and is absent in other processes."""
        return isinstance(other, Failed) and self.model_dump() == other.model_dump()

    def explain(self, error: E) -> E:
        """Give an error its cause, where that was raised in this process, else the traceback as a note."""
        if self._raised is not None:
            error.__cause__ = self._raised
        elif self.traceback:
            error.add_note(self.traceback)
        return error


_ENDINGS: dict[str, type[RunEnded]] = {"failed": RunFailed, "cancelled": RunCancelled, "expired": RunExpired}
_SIGNALS: dict[str, type[ControlFlowError]] = {
    each.code: each for each in (errors.PipelineAbortSignal, errors.InfiniteFallbackError, errors.InfiniteRedirectError)
}
_FACADE_STATUS = {"succeeded": "completed"}


class PipelineResult(BaseModel, Generic[OutputT, ContextT]):
    """The result of a run. A run that failed, was cancelled or expired has its partial history and context, and no `output`.

    `pauses` are the open questions of a paused run and its child runs.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, serialize_by_alias=True)

    run_id: str = ""
    run_status: str = "succeeded"
    step_history: list[StepResult] = Field(default_factory=list)
    total_cost_usd: float = 0.0
    total_tokens: int = 0
    final_pipeline_context: ContextT = None  # type: ignore[assignment]  # None until the run has one
    output_: OutputT = Field(default=None, alias="output")  # type: ignore[assignment]  # None without a success
    error: Failed | None = None
    pauses: list[Paused] = Field(default_factory=list)
    _is_checked: bool = PrivateAttr(default=True)

    @property
    def output(self) -> OutputT:
        """Return the output of the last step.

        Raises:
            RunFailed and the like: the run did not succeed, as `raise_for_status` says; None instead after `result(check=False)`.
        """
        if self._is_checked:
            self.raise_for_status()
        return self.output_

    @property
    def success(self) -> bool:
        """Return whether every step succeeded."""
        return self.run_status == "succeeded"

    @property
    def status(self) -> str:
        """Return the run's status, with `completed` for a run that succeeded."""
        return _FACADE_STATUS.get(self.run_status, self.run_status)

    @property
    def signals(self) -> list[StepOutcome]:
        """Return a `Paused` for each open question, an `Aborted` if the run was stopped, nothing for any other run."""
        error = self.error or Failed()
        if self.run_status in ("cancelled", "expired") or error.code in _SIGNALS:
            return [Aborted(reason=error.message or self.run_status)]
        return [*self.pauses]

    def unchecked(self) -> Self:
        """Return this result with an `output` that is None for a run that did not succeed, instead of raising."""
        unchecked = self.model_copy()
        unchecked._is_checked = False  # noqa: SLF001 - its own
        return unchecked

    def raise_for_status(self) -> Self:
        """Return the result of a successful run; raise otherwise.

        The error has the traceback of the user's code as a note, and the original error as its cause if it was raised in this process.

        Raises:
            PausedException: the run waits for an answer from a person, or for an event.
            ClientError: the run has not ended: it is queued, runs or is parked.
            PipelineAbortSignal, InfiniteFallbackError, InfiniteRedirectError: the run ended with it.
            UsageLimitExceededError: a limit stopped the run; has the partial result.
            PricingNotConfiguredError: costs are strict and a model has no price.
            RunFailed, RunCancelled, RunExpired: how the run ended; has the partial result.
        """
        if self.success:
            return self
        if self.run_status == "paused":
            text = "; ".join(each.message for each in self.pauses)
            text = text or f"run {self.run_id} waits for an answer from a person, or for an event"
            way_out = "answer with `resume`, or `send` the event, and read the result again"
            raise errors.PausedException(text, result=self, suggestion=way_out)
        error = self.error or Failed()
        if error.code in _SIGNALS:
            raise error.explain(_SIGNALS[error.code](error.message, suggestion=error.suggestion))
        if error.code == errors.UsageLimitExceededError.code:
            raise error.explain(errors.UsageLimitExceededError(error.message, self, suggestion=error.suggestion))
        if error.code == errors.PricingNotConfiguredError.code:
            raise error.explain(errors.PricingNotConfiguredError.from_message(error.message))
        text = f"{error.type_name}: {error.message}" if error.type_name else error.message
        ending = _ENDINGS.get(self.run_status)
        if ending is None:
            what = f"run {self.run_id} is {self.run_status}" + (f": {text}" if text else "")
            way_out = error.suggestion or "read the result again when it has ended"
            raise errors.ClientError(what, suggestion=way_out, code="RUN_IS_LIVE")
        message = f"run {self.run_id} {self.run_status}" + (f": {text}" if text else "")
        raise error.explain(ending(message, result=self, suggestion=error.suggestion))


class RefinementCheck(BaseModel):
    """A critic's answer: whether the artifact is good enough, and what to improve."""

    is_complete: bool
    feedback: str | None = None


class Refinement(BaseModel):
    """An artifact with its critic's answer."""

    artifact: Any = None
    check: RefinementCheck
