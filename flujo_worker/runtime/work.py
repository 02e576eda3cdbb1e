"""What a policy gets and gives: one attempt's work, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.outcome import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from flujo_client.contract.outcome import Correction, Usage
    from flujo_client.contract.processing import ProcessingConfigModel
    from flujo_client.pipeline.step import Step
    from flujo_worker.ports import Reply
    from flujo_worker.runtime.faults import During


class ConversationHistory(NamedTuple):
    """What was said in a conversation: `text` for the agent, and `shown`, the same without its secrets, for the run's story."""

    text: str
    shown: str


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call: the model, seconds it took, whether the provider failed, seconds it asked to wait, and what the call raised."""

    model: str
    seconds: float
    failed: bool = False
    asked_s: float = 0.0
    raised: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Notes:
    """What an attempt has to say besides its output, however it ends.

    Attributes:
        guidance: what the next attempt is told besides this one's fault (C-03).
        corrections: for the correction ledger.
        spent: by those who were asked besides the agent, and say so: processors, plugins and validators (M-044).
        calls: how the models that it called were, for their circuit breakers.
        tool_calls: how many calls of agents as tools it has begun.
        questions: how often a tool's agent has asked a person the same.
        replies: the answers that a tool's agent was given, each with its value.
        pause: the question that nobody has answered yet, and `paused_in` the tool it came up in.
    """

    guidance: str | None = None
    spent: Usage = NO_USAGE
    corrections: list[Correction] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    tool_calls: int = 0
    questions: Counter[tuple[str, str]] = field(default_factory=Counter)
    replies: list[tuple[Reply, Any]] = field(default_factory=list)
    pause: BaseException | None = None
    paused_in: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt's work.

    Attributes:
        step: the live step, its agent found.
        data: its input.
        context: the attempt's own copy, or None.
        resources: what the pipeline names as its resources; for a policy, what is open of them.
        guidance: why the attempt before this one failed.
        timeout_s: seconds the agent may take.
        threads: where sync code runs.
        processing: what AROS is to do; None where it is not to act.
        agent_of: finds the live agent of a reference; gives any other thing back.
        notes: what is to be said however the attempt ends.
        prompts: how much of a model's prompts and answers is told: `off`, `preview` or `full`.
        resolve: finds the classes that values are made of.
        reply: the question this attempt waited with, and its answer; None for work that asks nobody.
        replies: reads what was asked and answered at this step so far.
        conversation: the rules of the conversational loop that it stands in; None outside of one.
        history: what was said in it so far; None before the first turn.
    """

    step: Step
    agent: Any
    data: Any
    context: Any
    guidance: str | None
    timeout_s: float
    threads: Executor
    processing: ProcessingConfigModel | None
    agent_of: Callable[[Any], Any]
    notes: Notes
    resolve: Callable[[str], Any]
    resources: Any = None
    prompts: str = "preview"
    reply: Reply | None = None
    replies: Callable[[], Sequence[Reply]] = tuple
    conversation: Mapping[str, Any] | None = None
    history: ConversationHistory | None = None

    @property
    def at_hand(self) -> dict[str, Any]:
        """What user code in the attempt may take by name (M-021, M-024)."""
        return {"context": self.context, "resources": self.resources}


@dataclass(frozen=True, slots=True)
class Done:
    """What a policy gives for a success."""

    output: Any
    context: Any
    usage: Usage


class StageError(Exception):
    """Where a policy failed, and what it had spent until then. Nobody outside the attempt sees it."""

    def __init__(
        self, error: BaseException, during: During, usage: Usage = NO_USAGE, timeout_s: float | None = None
    ) -> None:
        super().__init__(str(error))
        self.error, self.during, self.usage, self.timeout_s = error, during, usage, timeout_s
