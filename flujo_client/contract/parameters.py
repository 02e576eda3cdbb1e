"""The type parameters of pipelines, runs and results: `Pipeline[str, MyContext]`. Both are `Any` by default."""

from typing import Any

from typing_extensions import TypeVar  # that of the standard library has no defaults before Python 3.13

OutputT = TypeVar("OutputT", default=Any)
"""The output of the last step."""

ContextT = TypeVar("ContextT", default=Any)
"""The run's context."""
