"""Flujo Worker: everything that authors of pipelines and operators of workers import, including the names of `flujo_client`.

The names are loaded when they are first used: the package itself imports none of a worker's libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import flujo_client

if TYPE_CHECKING:
    from flujo_client import *  # noqa: F403
    from flujo_worker.agents import *  # noqa: F403
    from flujo_worker.agents.scripted import scripted_model as scripted_model
    from flujo_worker.celery_app.app import FlujoWorker as FlujoWorker
    from flujo_worker.durable.function_unit import unit as unit
    from flujo_worker.runtime.progress import progress as progress
    from flujo_worker.runtime.progress import stream_text as stream_text
    from flujo_worker.testing import LocalEngine as LocalEngine

__version__: str
_HOME = {
    name: module
    for module, names in {
        "agents": "CANNOT_REPAIR AgentResult AgentTool BaseAgent FlujoAgent ImprovementReport ImprovementSuggestion "
        "PlanGeneratorAgent TemplatedAgent make_agent_async make_reflection_agent make_repair_agent make_review_agent "
        "make_self_improvement_agent make_solution_agent make_templated_agent_async make_validator_agent",
        "agents.scripted": "scripted_model",
        "celery_app.app": "FlujoWorker",
        "durable.function_unit": "unit",
        "runtime.progress": "progress stream_text",
        "testing": "LocalEngine",
    }.items()
    for name in names.split()
}
if not TYPE_CHECKING:
    __all__ = sorted({*_HOME, *flujo_client.__all__})  # noqa: PLE0605


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *flujo_client.__all__, "__version__"})


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(_imported(_HOME[name]), name)
    elif name == "__version__" or name in flujo_client.__all__:
        value = getattr(flujo_client, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    try:
        return import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as missing:
        if (missing.name or "flujo_").startswith("flujo_"):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{module} needs {missing.name}, a worker's library: pip install 'flujo-worker[worker]'",
            name=missing.name,
        ) from missing
