"""Classify exceptions: the only place where they become data about an attempt.

It must not log, wait, retry or swallow anything, and imports no agent library: their exceptions are recognised by module and class name.
`CancelledError` is not an error and never comes here.

Two chains are read. The *root cause*, which feedback names, follows `__cause__` and `__context__` as Python's own traceback does. The
*category* follows only exceptions that were raised on purpose: the exception itself, its `__cause__` and a group's members, because an
error that was handled is not evidence about a later one.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

import pydantic_core

from flujo_client.contract.outcome import Fault
from flujo_client.errors import (
    AgentError,
    ConfigurationError,
    ControlFlowError,
    FlujoError,
    HumanInputError,
    NonRetryableError,
    PluginError,
    PricingNotConfiguredError,
    TemplateResolutionError,
    TypeMismatchError,
    ValidationError,
)
from flujo_client.shadowed import rename_advice
from flujo_client.tracebacks import frame_of, traceback_of
from flujo_worker.concurrency.call_context import setting
from flujo_worker.concurrency.event_loop import reached_limit_s
from flujo_worker.domain.guidance import is_verdict
from flujo_worker.errors import RetryRequested
from flujo_worker.runtime.fault_text import bounded, clean, digest_of, message_of, named, outer
from flujo_worker.runtime.http_errors import (
    SERVER_ERROR,
    WILL_NOT_HELP,
    explicit_chain,
    foreign_names,
    is_of_service,
    refusal_of,
    requested_wait,
    status_of,
)

STEP_TIMEOUT: Final = "STEP_TIMEOUT"
"""The code of a timeout that a limit of ours has raised; those of user code have none."""
During = Literal["agent", "plugin", "validator", "system"]
Action = Literal["retry", "fail", "raise", "wait"]


class ErrorCategory(StrEnum):
    """The origin of a failure."""

    AGENT = "agent"
    VALIDATION = "validation"
    PLUGIN = "plugin"
    SYSTEM = "system"
    CONTROL_FLOW = "control_flow"
    CONFIGURATION = "configuration"
    LIMIT = "limit"
    HUMAN = "human"


class ErrorResponse(NamedTuple):
    """The response to an error, by its category."""

    action: Action
    category: ErrorCategory


_BY_CLASS: tuple[tuple[type[FlujoError], ErrorCategory], ...] = (
    (ControlFlowError, ErrorCategory.CONTROL_FLOW),
    (ConfigurationError, ErrorCategory.CONFIGURATION),
    (ValidationError, ErrorCategory.VALIDATION),
    (PluginError, ErrorCategory.PLUGIN),
    (AgentError, ErrorCategory.AGENT),
    (HumanInputError, ErrorCategory.HUMAN),
)
_BY_PLACE: dict[During, tuple[ErrorCategory, str]] = {
    "agent": (ErrorCategory.AGENT, "Agent execution failed"),
    "plugin": (ErrorCategory.PLUGIN, "Plugin execution failed"),
    "validator": (ErrorCategory.VALIDATION, "Validation failed"),
    "system": (ErrorCategory.SYSTEM, "Step execution failed"),
}
# These mean the same wherever they are raised; any other category gives way to the place.
_ANYWHERE = (ErrorCategory.CONTROL_FLOW, ErrorCategory.LIMIT, ErrorCategory.CONFIGURATION)

_LIMIT_NAMES = {"UsageLimitExceeded", "UsageLimitExceededError"}
_AGENT_NAMES = {"AgentRunError", "ModelRetry", "FallbackExceptionGroup"}
_SAME_AGAIN = (NonRetryableError, TemplateResolutionError, TypeMismatchError)
"""Our errors that the same values always cause."""
_BUGS = (ImportError, NameError, SyntaxError)
_BUGS_UNLESS_ASKED = (AttributeError, TypeError)
"""Bugs too, unless the code has met an agent's answer."""
_EXTRA = re.compile(r"pydantic-ai-slim\[[\w-]+\]")
_MAY_HELP = {"RunTimedOut", "ModelRateLimitError", "ModelUnavailableError", "ModelServerError", "ModelConnectionError"}
_retaining: ContextVar[bool] = ContextVar("flujo_keeping_errors", default=False)
_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
_RETRYABLE_STATUS = {408, 409, 425, 429}


class ErrorHandler:
    """The two questions a seed promises to answer about an error."""

    def categorize_error(self, error: BaseException) -> ErrorCategory:
        """Return the category of the error's classes; SYSTEM if no class has one."""
        return _classified(error)[0]

    def handle_error(self, error: BaseException, context: During = "system") -> ErrorResponse:
        """Return what to do about an error raised during `context`.

        An agent's is retried if that may help, a validator's or plugin's fails the step, a system's waits for the
        service behind it; control flow, limits and strict costs without a price pass through to the code that ends the run.
        """
        fault = describe(error, during=context)
        return ErrorResponse(action=_action(fault), category=ErrorCategory(fault.category))


def _action(fault: Fault) -> Action:
    match fault.category:
        case ErrorCategory.CONTROL_FLOW | ErrorCategory.LIMIT:
            return "raise"
        case ErrorCategory.CONFIGURATION if fault.code == PricingNotConfiguredError.code:
            return "raise"
        case ErrorCategory.AGENT if fault.retryable:
            return "retry"
        case ErrorCategory.SYSTEM if fault.retryable:
            return "wait"
        case _:
            return "fail"


def describe(error: BaseException, *, during: During, has_asked: bool = False, retry_bugs: bool | None = None) -> Fault:
    """Turn an exception into data, without its traceback. Messages are redacted and at most 4 KB.

    The place where it was raised gives the category, unless the class means the same everywhere: control flow, limit, configuration. `has_asked`: an
    agent was called, or a model has answered, so the code may accept the next answer; `retry_bugs`: what the step says about retrying bugs.
    """
    category, subject = _classified(error)
    by_place, sentence = _BY_PLACE[during]
    if category not in _ANYWHERE:
        subject = root_cause(error)
        category = category if during == "system" else by_place
    message, limit_s = message_of(subject), reached_limit_s(subject)
    ours = next((link for link in explicit_chain(error) if isinstance(link, FlujoError)), None)
    advice = ours.suggestion if ours else None
    may_help = category in (ErrorCategory.AGENT, ErrorCategory.SYSTEM) and _may_help(error)
    is_bug = retry_bugs is not True and _is_bug(error, has_asked=has_asked and retry_bugs is None)
    wanted = error if isinstance(error, RetryRequested) else None
    return Fault(
        category=category.value,
        type_name=type(subject).__name__,
        module=type(subject).__module__,
        message=message,
        code=(ours.error_code if ours else None if limit_s is None else STEP_TIMEOUT) or "",
        suggestion=clean(advice)
        if advice
        else rename_advice(error) or missing_package(error) or _missing_await(subject),
        feedback=bounded(f"{sentence} with {named(subject, message)}{outer(error, subject)}"),
        guidance=guidance_of(error),
        retryable=wanted is not None or (may_help and not is_bug),
        retry_after_s=requested_wait(error) if wanted is None else wanted.after_s,
        is_requested=wanted is not None,
        traceback_digest=digest_of(subject),
        details=_details(error, ours, limit_s),
    )


def _details(error: BaseException, ours: FlujoError | None, limit_s: float | None) -> dict[Any, Any]:
    found: dict[Any, Any] = refusal_of(error) if limit_s is None else {"timeout_s": limit_s}
    if ours is not None and isinstance(ours.details, Mapping):  # a subclass of the user's may use the name for anything
        found.update(ours.details)
    return {name: clean(each) if isinstance(each, str) else each for name, each in found.items()}


def fault_of(error: BaseException, during: During, *, has_asked: bool = False, retry_bugs: bool | None = None) -> Fault:
    """Describe an exception as an outcome carries it, with the user's part of its traceback; control flow has none."""
    fault = describe(error, during=during, has_asked=has_asked, retry_bugs=retry_bugs)
    traceback = "" if fault.category == ErrorCategory.CONTROL_FLOW else traceback_of(error)
    frame = frame_of(error, root_cause(error)) if traceback else {}
    raised = error if _retaining.get() or has_sentry() else None
    return replace(fault, traceback=traceback, details={**fault.details, **frame}, raised=raised)


def has_sentry() -> bool:
    """Return whether `sentry_sdk.init` was called in this process."""
    asked = getattr(sys.modules.get("sentry_sdk"), "is_initialized", None)
    return asked is not None and bool(asked())


def retaining_errors() -> AbstractContextManager[None]:
    """Store each error in its fault in this thread: where all is in one process, it can be raised again as a cause."""
    return setting(_retaining, True)  # noqa: FBT003 - the value


def guidance_of(error: BaseException, *, judges: bool = False) -> str | None:
    """Return what the next attempt's model is told; nothing of a failed service. `judges`: it is a verdict on the answer, whatever its class."""
    if is_of_service(error):
        return None
    for link in explicit_chain(error):
        if isinstance(link.__cause__, pydantic_core.ValidationError) and _is_refusal(link):
            return message_of(link.__cause__)
        guides = judges or is_verdict(type(link))
        if guides is not None:
            return message_of(link) if guides else None
    return None


def _is_refusal(error: BaseException) -> bool:
    """Return whether pydantic-ai reports that what a model sent did not fit, and that it must not ask again."""
    return "UnexpectedModelBehavior" in foreign_names(error) and "exceeded max" in str(error).lower()


def root_cause(error: BaseException) -> BaseException:
    """Find the innermost error behind this one.

    Follows `__cause__`, else `__context__` unless `raise … from None` hides it; a group of one counts as its member. A cycle ends where it
    would repeat. A BaseException that is not an Exception, such as a cancellation, is never the cause, unless user code raised it to end
    the process.
    """
    seen, behind = {id(error)}, _behind(error)
    while isinstance(behind, (Exception, *_EXITS)) and id(behind) not in seen:
        seen.add(id(behind))
        error, behind = behind, _behind(behind)
    return error


def _behind(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        member: BaseException = error.exceptions[0]
        return member
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _classified(error: BaseException) -> tuple[ErrorCategory, BaseException]:
    """Return the category by classes, and the error that has it; categories that apply anywhere come first."""
    classified = [(category, link) for link in explicit_chain(error) if (category := _own_category(link)) is not None]
    first = next(iter(classified), (ErrorCategory.SYSTEM, error))
    return next((pair for pair in classified if pair[0] in _ANYWHERE), first)


def _own_category(error: BaseException) -> ErrorCategory | None:
    foreign = foreign_names(error)
    if foreign & _LIMIT_NAMES or type(error).__name__ in _LIMIT_NAMES:
        return ErrorCategory.LIMIT
    if "UserError" in foreign:
        return ErrorCategory.CONFIGURATION
    by_class = next((category for kind, category in _BY_CLASS if isinstance(error, kind)), None)
    return by_class or (ErrorCategory.AGENT if foreign & _AGENT_NAMES else None)


def _may_help(error: BaseException, seen: frozenset[int] = frozenset()) -> bool:
    """Return whether the same call may succeed later: the outermost verdict counts, and in a group the most hopeful."""
    for link in explicit_chain(error):
        if isinstance(link, _SAME_AGAIN):
            return False
        if (word := _own_verdict(link)) is not None:
            return word
        if isinstance(link, BaseExceptionGroup) and id(link) not in seen:
            return any(_may_help(member, seen | {id(link)}) for member in link.exceptions)
    return True


def _is_bug(error: BaseException, *, has_asked: bool) -> bool:
    """Return whether the same code would fail in the same way (ADR 14). Only the error itself counts: one deliberately raised from a bug is none."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_bug(each, has_asked=has_asked) for each in error.exceptions)
    return isinstance(error, _BUGS) or (isinstance(error, _BUGS_UNLESS_ASKED) and not has_asked)


def missing_package(error: BaseException) -> str | None:
    """Return what to install where a package is missing that pydantic-ai needs for a provider, or that the worker itself imports late."""
    for link in explicit_chain(error):
        if isinstance(link, ModuleNotFoundError) and _importer(link) == "flujo_worker":
            return f"install '{link.name}' where workers run: pip install 'flujo-worker[worker]'"
        if isinstance(link, ImportError) and (extra := _EXTRA.search(str(link))):
            commands = f"pip install '{extra[0]}', or 'flujo-worker[models]' for all providers"
            return f"install it where workers run: {commands}"
    return None


def _importer(error: ModuleNotFoundError) -> str:
    frames = [frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((name.partition(".")[0] for name in reversed(frames) if not name.startswith("importlib")), "")


def _missing_await(error: BaseException) -> str | None:
    is_one = isinstance(error, AttributeError | TypeError) and "'coroutine' object" in str(error)
    return "write `await` in front of the call that returned the coroutine" if is_one else None


def _own_verdict(error: BaseException) -> bool | None:
    names = foreign_names(error)
    if names & _MAY_HELP:
        return True
    if names & WILL_NOT_HELP:
        return False
    status = status_of(error)
    return None if status is None else status in _RETRYABLE_STATUS or status >= SERVER_ERROR
