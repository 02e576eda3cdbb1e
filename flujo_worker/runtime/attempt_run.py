"""The running attempt: its input, its progress, its spend, and its report. It does not decide what follows.

All code that runs inside an attempt finds it by `current_run`, in tasks and threads too: settings, tools and prices need no separate variables.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from flujo_client.attempt_info import AttemptInfo, running_attempt
from flujo_client.config.models import Cost, TemplateSettings
from flujo_client.contract.context import StoredContext
from flujo_client.contract.outcome import NO_USAGE, Correction, Fault, Usage
from flujo_client.contract.processing import ProcessingConfigModel
from flujo_client.errors import AgentError
from flujo_client.frozen import frozen
from flujo_client.pipeline.compiled_text import Filling
from flujo_client.pipeline.step import Step
from flujo_worker.concurrency.event_loop import is_late_answer
from flujo_worker.concurrency.threads import carried, with_usable_connections
from flujo_worker.domain.asking import Ask
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.rate import Left
from flujo_worker.domain.starvation import is_starved
from flujo_worker.ports import ClaimId, Reply
from flujo_worker.runtime.call_args import Callee
from flujo_worker.runtime.faults import During
from flujo_worker.runtime.http_errors import is_timeout

if TYPE_CHECKING:
    from flujo_client.contract.stream import StreamKind

T = TypeVar("T")


class History(NamedTuple):
    """A conversation so far: `text` for the agent, and `shown`, the same without its secrets, for the run's events."""

    text: str
    shown: str


class Starvation(NamedTuple):
    """For how many of some seconds an event loop was late."""

    seconds: float
    late_s: float


@frozen
class ModelCall:
    """One call."""

    model: str
    seconds: float
    failed: bool = False
    """Whether the provider failed."""
    refused: bool = False
    """Whether the provider refused it because too many calls were made."""
    asked_s: float | None = None
    """The seconds that the provider asked to wait; None if it did not say."""
    raised: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Work:
    """The input of an attempt."""

    step: Step
    callee: Callee
    options: Mapping[str, Any]
    appends_to: str | None
    """The field of the context that the answers are appended to, if any."""
    timeout_s: float
    threads: Executor
    processing: ProcessingConfigModel | None
    """The settings of AROS; None if it is off."""
    agent_of: Callable[[Any], Any]
    """Finds the live agent of a reference; returns any other object unchanged."""
    resolve: Callable[[str], Any]
    """Finds the classes of values."""
    stages: Sequence[Any] = ()
    """The stages that its data passes, of `attempts/step.py`."""
    data: Any = None
    guidance: str | None = None
    """What was wrong with the previous attempt's answer."""
    resources: Any = None
    """The pipeline's resources, not open yet."""
    reply: Reply | None = None
    """The question this attempt waited with, and its answer; None for work without a question."""
    replies: Callable[[], Sequence[Reply]] = tuple
    """Reads the questions and answers at this step so far."""
    conversation: Mapping[str, Any] | None = None
    """The rules of its conversational loop; None outside one."""
    invariants: Sequence[tuple[str, Callable[..., Any]]] = ()
    """The functions that judge its results, each with its name in errors."""


@frozen
class CallSettings:
    """The project's settings for what is called in an attempt: prices, templates, how much of prompts and answers is logged, and seconds."""

    cost: Cost = field(default_factory=Cost)
    template: TemplateSettings = field(default_factory=TemplateSettings)
    prompts: str = "off"
    agent_timeout_s: float = 60.0
    filling: Filling = field(default_factory=Filling)


class ModelPace(Protocol):
    """Paces an attempt's calls of models that have a rate limit."""

    def limit_of(self, model: str) -> Any:
        """Return the limit of a model, if it has one."""

    async def begin(self, limit: Any, tokens: int, sleep: Callable[[float], Awaitable[None]] = ...) -> Any:
        """Wait until a call may begin; return what is set aside for it."""

    async def end(self, limit: Any, grant: Any, tokens: int, left: Left = ...) -> None:
        """Report the tokens that a call has used, and what the provider says is left."""


class RefusalMemory(Protocol):
    """Remembers what providers refused, for all workers."""

    async def includes(self, name: str) -> bool:
        """Return whether this was refused before."""

    async def add(self, name: str) -> None:
        """Remember that this was refused."""


class AttemptStream(Protocol):
    """Streams what an attempt does and says (ADR 57)."""

    def put(self, kind: StreamKind, data: Mapping[str, Any]) -> None:
        """Stream an entry."""

    def say(self, text: str) -> None:
        """Stream a text of the step's own."""


class UnitPayments(Protocol):
    """What the calls of a durable attempt have cost."""

    spent: Usage
    """What is booked with the units that this claim has asked."""

    def take_spent(self) -> Usage:
        """Return what was paid and not taken yet for answers that are not on record."""

    def take_booked(self) -> Usage:
        """Return what was booked with units and not taken yet, for an event."""


class UnitRecord(Protocol):
    """The calls of a durable attempt on record."""

    @property
    def payments(self) -> UnitPayments:
        """Return what they have cost."""

    def has_failed_with(self, error: BaseException) -> bool:
        """Return whether a call has raised this error, and not what was done with the answers."""

    def emit_unasked(self) -> None:
        """Emit which units on record nothing has asked for."""


@dataclass(eq=False, slots=True)
class ActiveAttempt:
    """An attempt that this process works on. `fence` is None until it is claimed; `reserved` is what the claim has reserved from budgets.

    `on_cancel` and `on_interrupt` stop its code, while that runs. `leaves`: the process stops, so a durable attempt ends at its next unit; `has_left`: it
    has ended there.
    """

    key: str
    fence: int | None = None
    claim_id: str | None = None
    cancelled: bool = False
    interrupted: bool = False
    leaves: bool = False
    has_left: bool = False
    reserved: Sequence[Reservation] = ()
    on_cancel: Callable[[], object] | None = None
    on_interrupt: Callable[[], object] | None = None
    held_since: float = field(default_factory=time.monotonic)

    @property
    def claim(self) -> ClaimId:
        """Return its claim."""
        return ClaimId(self.key, self.fence, self.claim_id)

    def cancel(self) -> None:
        """Stop the work if possible: another worker has it, or its run was cancelled."""
        self.cancelled = True
        if (stop := self.on_cancel) is not None:
            stop()

    def leave(self) -> None:
        """End the work at this call of a durable attempt."""
        self.has_left = True
        self.interrupt()

    def interrupt(self) -> None:
        """End the work and wait for its end: another worker will do it again."""
        self.interrupted = True
        if (stop := self.on_interrupt) is not None:
            stop()


class AttemptRun:
    """One attempt as it runs; `info` is what user code may see.

    `pace` and `journal` create its model pace and the record of its units at their first use. `refused_formats` remembers which models refused
    structured output. `late_s` returns for how many seconds this process's event loop has been late; always 0 where that does not matter.
    """

    work: Work | None = None
    """Its input; None until that is decoded."""
    stream: AttemptStream | None = None
    """Its stream; None unless its run or its step asks for one."""
    progress: Mapping[str, Any] | None = None
    """Its progress, as its own code reports it."""
    answers_live: bool = False
    """Its agent is about to be called, and streams; agents in tools do not."""
    stored: StoredContext | None = None
    """Its copy of the context in stored form; None once something has decoded it, and without a context."""
    resources: Any = None
    """The open resources of the pipeline."""
    history: History | None = None
    """Its conversation so far; None before the first turn."""
    during: During = "system"
    """The present stage, for a possible error."""
    spent: Usage = NO_USAGE
    guidance: str | None = None
    verdict: BaseException | None = None
    """An output processor's error, which judges the answer whatever its class."""
    of_tool: BaseException | None = None
    """The error of an agent called as a tool, which does not judge this attempt's answer."""
    raw: str | None = None
    """The answer that the model wrote, of an attempt that failed."""
    tool_calls: int = 0
    over: Fault | None = None
    """Why it makes no further request: that does not fit its budgets."""
    has_called_agent: bool = False
    """An agent was called, which may act otherwise next time; a plain function does not count."""
    left_in_thread: bool = False
    """Sync code was cancelled while it ran in a thread, where it continues."""
    signalled: str | None = None
    """The state that the signals of a Celery task have reported, if it ran one."""
    used_journal: UnitRecord | None = None
    """The record of its units, once it has asked any: most attempts do not."""
    has_blocked: bool = False
    """Its own code has blocked the loop."""
    starved: Starvation | None = None
    """How late the loop was at the stage that has timed out for that."""
    _entered: tuple[float, float] = 0.0, 0.0
    _context: Any = None

    def __init__(
        self,
        info: AttemptInfo | None = None,
        settings: CallSettings | None = None,
        *,
        pace: Callable[[], ModelPace] | None = None,
        refused_formats: RefusalMemory | None = None,
        journal: Callable[[AttemptRun], UnitRecord] | None = None,
        late_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.info, self.settings, self._make_journal = info, settings or _DEFAULTS, journal
        self.refused_formats, self.late_s, self._make_pace = refused_formats, late_s, pace
        self.corrections: list[Correction] = []
        self.calls: list[ModelCall] = []
        self.replies: list[tuple[Reply, Any]] = []
        """The answers to a tool's agent, each with its value."""
        self.asks: list[Ask] = []
        """What its calls ask people, and `pauses` the errors that end it for that."""
        self.pauses: list[BaseException] = []
        self.notes: dict[str, Any] = {}
        """Further metadata of the step, in addition to the counts of its events."""
        self._charges: dict[int, tuple[BaseException, Usage]] = {}

    @cached_property
    def pace(self) -> ModelPace | None:
        """Return what paces its calls of models with a rate limit; None without limits."""
        return None if self._make_pace is None else self._make_pace()

    @property
    def journal(self) -> UnitRecord | None:
        """Return the record of its units; None where nothing is recorded."""
        if self.used_journal is None and self._make_journal is not None:
            self.used_journal = self._make_journal(self)
        return self.used_journal

    @cached_property
    def questions(self) -> Counter[tuple[str, str]]:
        """Count how often a tool's agent has asked a person the same."""
        return Counter()

    @property
    def context(self) -> Any:
        """Return its own copy of the context, or None; the first look decodes it."""
        if self.stored is not None:
            self._context, self.stored = self.stored.live(), None
        return self._context

    @context.setter
    def context(self, context: Any) -> None:
        self._context, self.stored = context, None

    def at_hand(self, callee: Callee) -> dict[str, Any]:
        """Return the arguments that user code may take by name."""
        return {"context": self.context if callee.takes_context else None, "resources": self.resources}

    def enter(self, during: During) -> None:
        """Enter a stage, to which errors are attributed from now on."""
        self.during = during
        self._entered = time.monotonic(), self.late_s()

    def starvation(self, error: BaseException) -> Starvation | None:
        """Return how late the event loop was at the present stage, if that and not the code there caused this error, a timeout."""
        found = Starvation(time.monotonic() - self._entered[0], self.late_s() - self._entered[1])
        is_own = self.has_blocked or is_late_answer(error)
        return found if is_timeout(error) and not is_own and is_starved(*found) else None

    def charge(self, error: BaseException, usage: Usage) -> None:
        """Record the spend of a call that fails with this error. It counts once a caller takes it."""
        self._charges[id(error)] = error, usage

    def charge_of(self, error: BaseException) -> Usage:
        """Return the spend of the call that failed with this error."""
        return self._charges.get(id(error), (error, NO_USAGE))[1]

    def take_charge(self, error: BaseException) -> Usage:
        """Return the spend of the call that failed with this error, and forget it: it must not count twice."""
        return self._charges.pop(id(error), (error, NO_USAGE))[1]

    def model_of(self, error: BaseException) -> str | None:
        """Return the model whose call raised this error, else that of the last call; None without one."""
        raising = (each for each in self.calls if each.raised is error)
        call = next(raising, self.calls[-1] if self.calls else None)
        return None if call is None else call.model

    def of_its_model(self, usage: Usage) -> Usage:
        """Return the usage with the name of its model, if only one model was called."""
        models = {call.model for call in self.calls}
        return replace(usage, model=models.pop()) if len(models) == 1 and not usage.is_nothing else usage

    def failed(self, error: BaseException) -> StageError:
        """Attribute an error to the present stage, with the spend until now."""
        return StageError(error, self.during, self.spent + self.charge_of(error))


@frozen
class Done:
    """A policy's result. Its context, stored if nothing has decoded it, is without the output, and without the item, which belongs to the field's list."""

    output: Any
    context: Any
    field: str | None = None
    item: Any = None


class StageError(Exception):
    """The stage at which an attempt failed, and its usage until then. It never leaves the attempt."""

    def __init__(self, error: BaseException, during: During, usage: Usage) -> None:
        super().__init__(str(error))
        self.error, self.during, self.usage = error, during, usage


_DEFAULTS: Final = CallSettings()


def current_run() -> AttemptRun | None:
    """Return the attempt that this code runs in; None outside attempts."""
    running = running_attempt()
    return running if isinstance(running, AttemptRun) else None


def current_work() -> Work | None:
    """Return the work of the attempt that this code runs in; None outside attempts."""
    run = current_run()
    return None if run is None else run.work


def current_settings() -> CallSettings:
    """Return the settings of the attempt that this code runs in; the defaults outside attempts."""
    run = current_run()
    return _DEFAULTS if run is None else run.settings


def charge(error: BaseException, usage: Usage) -> None:
    """Record the spend of a call that fails with this error, in the attempt that makes it, if any."""
    run = current_run()
    if run is not None:
        run.charge(error, usage)


@contextmanager
def judging() -> Iterator[None]:
    """Take an AgentError or a ValueError raised inside, such as that of a failed parse, for a verdict on the model's answer."""
    try:
        yield
    except (AgentError, ValueError) as error:
        run = current_run()
        if run is not None and not isinstance(error, OSError):  # as some HTTP clients say that a body is not JSON
            run.verdict = error
        raise


def take_charge(error: BaseException) -> Usage:
    """Return the spend of a call that failed with this error; the caller must add it."""
    run = current_run()
    return NO_USAGE if run is None else run.take_charge(error)


async def in_thread(call: Callable[[], T]) -> T:
    """Call in one of the attempt's threads: the loop's own, which serve outside of attempts, are few, and a hanging call blocks one."""
    work = current_work()
    return await in_thread_of(None if work is None else work.threads, call)


async def in_thread_of(threads: Executor | None, call: Callable[[], T]) -> T:
    """Call in a thread of an executor, the loop's own if that is None; note it where the attempt is cancelled meanwhile."""
    try:
        result = await asyncio.get_running_loop().run_in_executor(threads, carried(partial(_contained, call)))
    except asyncio.CancelledError:
        run = current_run()
        if run is not None:
            run.left_in_thread = True
        raise
    if isinstance(result, _TimeoutOfCall):
        try:
            raise result.error
        finally:
            del result  # the error's traceback holds this frame, which would hold the error
    return result


class _TimeoutOfCall(NamedTuple):
    """A TimeoutError of the call itself: a future of asyncio would replace it with another, which has lost its traceback."""

    error: TimeoutError


def _contained(call: Callable[[], T]) -> T | _TimeoutOfCall:
    try:
        return with_usable_connections(call)
    except TimeoutError as error:
        return _TimeoutOfCall(error)
