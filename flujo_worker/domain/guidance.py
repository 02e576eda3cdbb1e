"""Decide which errors judge a model's answer: the next attempt's prompt contains only those. Pure.

Anything else, such as a refused call, a timeout or a bug, says nothing about the answer: the next prompt is the same as before.
"""

from typing import Final

VERDICTS: Final = {
    "FlujoError": False,
    "AgentIOValidationError": True,
    "AnswerCut": True,
    "AnswerEmpty": True,
    "UnknownToolCalled": True,
    "PluginError": True,
    "ValidationError": True,
    "TypeMismatchError": False,
    "TemplateResolutionError": False,
    # what a tool or a validator of pydantic-ai says of the model's output
    "ModelRetry": True,
    "ToolRetryError": True,
}
"""Whether an error of this class judges an answer. Any other class is what the nearest class here says that it derives from."""

_OURS: Final = {"flujo_client", "flujo_worker", "pydantic_ai"}


def is_verdict(kind: type[BaseException]) -> bool | None:
    """Return whether errors of a class judge an answer; None if neither the class nor one that it derives from is in the table."""
    known = (each.__name__ for each in kind.__mro__ if each.__module__.partition(".")[0] in _OURS)
    return next((VERDICTS[name] for name in known if name in VERDICTS), None)
