"""Decide which errors judge a model's answer: the next attempt's prompt contains only those. Pure.

Anything else, such as a refused call, a timeout or a bug, says nothing about the answer: the next prompt is the same as before.
"""

from __future__ import annotations

from typing import Final

VERDICTS: Final[dict[str, bool]] = {
    "AgentIOValidationError": True,
    "AnswerCut": True,
    "AnswerEmpty": True,
    "UnknownToolCalled": True,
    "PluginError": True,
    "ValidationError": True,
    # what a tool or a validator of pydantic-ai says of the model's output
    "ModelRetry": True,
    "ToolRetryError": True,
    **dict.fromkeys(
        (
            "FlujoError",
            "ConfigurationError",
            "SettingsError",
            "PipelineError",
            "BlueprintError",
            "BlueprintTextError",
            "MissingAgentError",
            "TemplateError",
            "PricingNotConfiguredError",
            "FeatureDisabled",
            "SchemaVersionError",
            "ServiceUnreachable",
            "ExecutionError",
            "AgentError",
            "AnswerFiltered",
            "AnswerTooLarge",
            "UnreadableResponse",
            "NonRetryableError",
            "ResumeError",
            "ReplayError",
            "HumanInputError",
            "StepInvocationError",
            "RunEnded",
            "RunFailed",
            "RunCancelled",
            "RunExpired",
            "UsageLimitExceededError",
            "ControlFlowError",
            "PausedException",
            "PipelineAbortSignal",
            "InfiniteRedirectError",
            "InfiniteFallbackError",
            "ContextError",
            "PipelineContextInitializationError",
            "ContextMergeError",
            "ContextFieldError",
            "TemplateResolutionError",
            "TypeMismatchError",
            "SerializationError",
            "SnapshotTooLarge",
            "CodeMissing",
            "KeyMissing",
            "ClientError",
            "RunNotFound",
            "WaitTimedOut",
            "RetryError",
            "AdmissionRefused",
            "IdempotencyConflict",
            "AlreadyUnderWay",
            "WorkerError",
            "RowLocked",
            "StoreError",
            "Unreadable",
            "DispatchError",
            "WireError",
            "StepFailed",
            "NotRecorded",
            "IllegalTransition",
        ),
        False,
    ),
}
"""Whether an error of this class judges an answer. A class of somebody else's is what the nearest class here says that it derives from."""

_OURS: Final = {"flujo_client", "flujo_worker", "pydantic_ai"}


def is_verdict(kind: type[BaseException]) -> bool | None:
    """Return whether errors of a class judge an answer; None if neither the class nor one that it derives from is in the table."""
    known = (each.__name__ for each in kind.__mro__ if each.__module__.partition(".")[0] in _OURS)
    return next((VERDICTS[name] for name in known if name in VERDICTS), None)
