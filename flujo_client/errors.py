"""Every error a user can meet.

FlujoError                      message, code, suggestion; can be sent as plain data
├── ConfigurationError          the set-up is wrong; nothing was started
│   ├── SettingsError           a value in flujo.toml or the environment
│   ├── PipelineError           a pipeline that cannot be sent: all findings at once
│   ├── BlueprintError          a blueprint, or a `processing` block, that cannot be used: all findings at once, each with its key
│   │   └── BlueprintTextError  an expression or a template that cannot be read; names the place in it
│   ├── MissingAgentError       a step without anything to run
│   ├── TemplateError           a prompt's template that is missing, wrong, or would grow without end
│   ├── PricingNotConfiguredError    costs are strict, and a model has no price
│   ├── FeatureDisabled         the settings turn off the requested feature
│   ├── SchemaVersionError      the database is older or newer than the code
│   └── ServiceUnreachable      Postgres or Redis does not answer
├── ExecutionError              a run that went wrong
│   ├── AgentError              an agent raised, timed out, or returned something unexpected
│   │   ├── AgentIOValidationError   a model's output that does not fit its schema, even after repair; names place and rule
│   │   ├── AnswerCut            an answer that ends at the model's token limit
│   │   ├── AnswerFiltered       an answer that the provider's content filter stopped
│   │   ├── AnswerTooLarge       an answer with more bytes than are read
│   │   ├── AnswerEmpty          an answer without anything in it, or only with thinking
│   │   ├── UnknownToolCalled    a model called a tool that it was not offered
│   │   └── UnreadableResponse   a provider's response that is not an answer in its format; it counts as an outage
│   ├── PluginError             a plugin rejected the output
│   ├── RunFailed / RunCancelled / RunExpired   how a run ended, raised where its result is awaited
│   ├── UsageLimitExceededError      a budget is used up; the partial result is on it
│   ├── NonRetryableError       raise it in an agent: do not try this again
│   ├── ResumeError             a run that cannot be continued in this way
│   ├── HumanInputError         a person's answer that does not fit, or came too late
│   └── StepInvocationError     a step was called as if it were a function
├── ControlFlowError            passes through every layer untouched
│   ├── PausedException         ask a person, and wait: raised in a step, and where the result is read meanwhile
│   ├── PipelineAbortSignal     stop this run now
│   ├── InfiniteRedirectError   a plugin sent the work to an agent that had been tried already
│   └── InfiniteFallbackError   a step that is, through fallbacks, its own fallback
├── ContextError
│   ├── PipelineContextInitializationError   the initial context does not fit its model
│   └── ContextMergeError       an output that cannot be merged into the context
│       └── ContextFieldError   a field that the context's model does not have
├── ValidationError             a validator rejected the output
│   ├── TypeMismatchError           an input that does not fit the type that its step's function declares; names the parameter
│   └── TemplateResolutionError     an expression or a template that does not fit its values; names the place in it
├── SerializationError          a value that cannot be serialised; names the path inside it
│   ├── SnapshotTooLarge
│   ├── CodeMissing             a value whose class or deserializer is not here
│   └── KeyMissing              a value that cannot be decrypted here; names the key
└── ClientError
    ├── RunNotFound
    ├── WaitTimedOut
    ├── EventError              an event that a run does not take
    ├── RetryError              a run that cannot be retried at this step; names the possible steps
    ├── AdmissionRefused        a limit on runs is reached, and its policy drops new ones
    └── IdempotencyConflict     same key, different work
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class FlujoError(Exception):
    """The base of every error a user can meet.

    Args:
        message: what happened, naming the thing and the place.
        suggestion: how to fix it, if one is known.
        code: a stable word for programs; the class's own when not given.
        cause: the error behind this one.
        details: facts about it for programs, names and plain values: stored with a failure, a few and short, and without secrets.
    """

    code: ClassVar[str] = "FLUJO_ERROR"

    def __init__(
        self,
        message: str = "",
        *,
        suggestion: str | None = None,
        code: str | None = None,
        cause: BaseException | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.details = details or {}
        self.error_code = code or type(self).code
        if cause is not None:
            self.__cause__ = cause

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.suggestion}" if self.suggestion else self.message


class ConfigurationError(FlujoError):
    code = "CONFIGURATION"


class SettingsError(ConfigurationError):
    code = "SETTINGS"


class PipelineError(ConfigurationError):
    """A pipeline that cannot be sent. `findings` lists everything that is wrong, not only the first."""

    code = "PIPELINE"

    def __init__(self, message: str = "", *, findings: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init__("\n".join([message, *(f"  - {finding}" for finding in findings)]), **rest)
        self.findings = findings


class BlueprintError(ConfigurationError):
    """A blueprint, or a `processing` block, that cannot be used.

    `findings` holds all that is wrong with a blueprint, as values with rule, key, line and column; `lines` are those of its text about them.
    """

    code = "BLUEPRINT"

    def __init__(
        self, message: str = "", *, findings: tuple[Any, ...] = (), lines: Sequence[str] = (), **rest: Any
    ) -> None:
        super().__init__("\n".join([message, *(f"  - {each}" for each in lines)]), **rest)
        self.findings = findings


class BlueprintTextError(BlueprintError):
    """An expression or a template that cannot be read. `offset` counts characters from 0, `line` and `column` from 1."""

    code = "BLUEPRINT_TEXT"

    def __init__(self, message: str = "", *, offset: int = 0, line: int = 1, column: int = 1, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.offset, self.line, self.column = offset, line, column


class MissingAgentError(ConfigurationError):
    code = "MISSING_AGENT"


class TemplateError(ConfigurationError):
    code = "TEMPLATE"


class PricingNotConfiguredError(ConfigurationError):
    """A model without a price where `[cost] strict` demands one."""

    code = "PRICING_NOT_CONFIGURED"

    def __init__(self, provider: str | None, model: str, **rest: Any) -> None:
        named = f"{provider}.{model}" if provider else model
        suggestion = f"set [cost.providers.{named}] in flujo.toml, or strict = false in [cost]"
        super().__init__(f"no price is configured for model '{named}'", **{"suggestion": suggestion, **rest})
        self.provider, self.model = provider, model

    @classmethod
    def from_message(cls, message: str) -> PricingNotConfiguredError:
        """Make the error again from what was recorded of it."""
        provider, dot, model = message.partition("'")[2].rstrip("'").partition(".")
        return cls(provider, model) if dot else cls(None, provider)


class FeatureDisabled(ConfigurationError):
    code = "FEATURE_DISABLED"


class SchemaVersionError(ConfigurationError):
    code = "SCHEMA_VERSION"


class ServiceUnreachable(ConfigurationError):
    code = "SERVICE_UNREACHABLE"


class ExecutionError(FlujoError):
    code = "EXECUTION"


class AgentError(ExecutionError):
    code = "AGENT"


class AgentIOValidationError(AgentError):
    """An output whose shape is wrong. `rule` says why in a word, `pointer` where, as a JSON pointer.

    `what` is what was expected and found there, and `more` the number of further places.
    """

    code = "AGENT_IO_VALIDATION"

    def __init__(
        self, message: str = "", *, rule: str = "schema", pointer: str = "", what: str = "", more: int = 0, **rest: Any
    ) -> None:
        details = {"rule": rule, "pointer": pointer, "what": what or message, "more": more}
        super().__init__(message, details=details, **rest)
        self.rule, self.pointer = rule, pointer


class AnswerCut(AgentError):
    code = "ANSWER_CUT"


class AnswerFiltered(AgentError):
    code = "ANSWER_FILTERED"


class AnswerTooLarge(AgentError):
    code = "ANSWER_TOO_LARGE"


class AnswerEmpty(AgentError):
    code = "ANSWER_EMPTY"


class UnknownToolCalled(AgentError):
    code = "UNKNOWN_TOOL_CALLED"


class UnreadableResponse(AgentError):
    code = "UNREADABLE_RESPONSE"


class PluginError(ExecutionError):
    code = "PLUGIN"


class NonRetryableError(ExecutionError):
    code = "NON_RETRYABLE"


class ResumeError(ExecutionError):
    code = "RESUME"


class ReplayError(ExecutionError):
    code = "REPLAY"


class HumanInputError(ExecutionError):
    code = "HUMAN_INPUT"


class StepInvocationError(ExecutionError):
    code = "STEP_INVOCATION"


class RunEnded(ExecutionError):
    """A run ended without success. `result` is the partial PipelineResult."""

    code = "RUN_ENDED"

    def __init__(self, message: str = "", *, result: Any = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.result = result


class RunFailed(RunEnded):
    code = "RUN_FAILED"


class RunCancelled(RunEnded):
    code = "RUN_CANCELLED"


class RunExpired(RunEnded):
    code = "RUN_EXPIRED"


class UsageLimitExceededError(ExecutionError):
    """A limit on cost or tokens is passed, or would be. `result` is the partial PipelineResult."""

    code = "USAGE_LIMIT_EXCEEDED"

    def __init__(self, message: str = "", result: Any = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.result = result


class ControlFlowError(FlujoError):
    code = "CONTROL_FLOW"


class PausedException(ControlFlowError):
    """A run waits for a person. Raise it in a step to ask a person: the message is the question, and the answer the step's output.

    When it is raised for a paused run's result, `result` is what exists of it.
    """

    code = "PAUSED"

    def __init__(self, message: str = "", *, result: Any = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.result = result


class PipelineAbortSignal(ControlFlowError):
    code = "PIPELINE_ABORT"


class InfiniteRedirectError(ControlFlowError):
    code = "INFINITE_REDIRECT"


class InfiniteFallbackError(ControlFlowError):
    code = "INFINITE_FALLBACK"


class ContextError(FlujoError):
    code = "CONTEXT"


class PipelineContextInitializationError(ContextError):
    code = "CONTEXT_INITIALIZATION"


class ContextMergeError(ContextError):
    code = "CONTEXT_MERGE"


class ContextFieldError(ContextMergeError):
    code = "CONTEXT_FIELD"


class ValidationError(FlujoError):
    code = "VALIDATION"


class TypeMismatchError(ValidationError):
    code = "TYPE_MISMATCH"


class TemplateResolutionError(ValidationError):
    """An expression or a template that cannot be evaluated with the values at hand.

    `missing` is the name that was not there, as it is written, and None where something else is wrong. `offset` counts characters from 0,
    `line` and `column` from 1.
    """

    code = "TEMPLATE_RESOLUTION"

    def __init__(
        self,
        message: str = "",
        *,
        missing: str | None = None,
        offset: int = 0,
        line: int = 1,
        column: int = 1,
        **rest: Any,
    ) -> None:
        super().__init__(message, **rest)
        self.missing, self.offset, self.line, self.column = missing, offset, line, column


class SerializationError(FlujoError):
    """A value that cannot be serialised. `path` names the place inside it, such as `context.items[3].handle`."""

    code = "SERIALIZATION"

    def __init__(self, message: str = "", *, path: str = "", **rest: Any) -> None:
        super().__init__(f"{path}: {message}" if path else message, **rest)
        self.path = path


class SnapshotTooLarge(SerializationError):
    code = "SNAPSHOT_TOO_LARGE"


class CodeMissing(SerializationError):
    """A value whose class, deserializer or tag this process does not have."""

    code = "CODE_MISSING"


class KeyMissing(SerializationError):
    """A value that this process cannot decrypt, or a signature that it cannot verify.

    It lacks the key, has another secret under that id, or the value or message was changed.

    `key_id` names the key.
    """

    code = "KEY_MISSING"

    def __init__(self, message: str = "", *, key_id: str = "", **rest: Any) -> None:
        super().__init__(message, **rest)
        self.key_id = key_id


class ClientError(FlujoError):
    code = "CLIENT"


class RunNotFound(ClientError):
    code = "RUN_NOT_FOUND"


class WaitTimedOut(ClientError):
    code = "WAIT_TIMED_OUT"


class RetryError(ClientError):
    code = "RETRY"


class EventError(ClientError):
    """An event that a run does not take."""

    code = "EVENT"


class AdmissionRefused(ClientError):
    code = "ADMISSION_REFUSED"


class IdempotencyConflict(ClientError):
    code = "IDEMPOTENCY_CONFLICT"
