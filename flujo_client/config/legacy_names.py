"""What users of the original project set, and what serves here in its place (requirements §2.7). A refusal names it."""

from __future__ import annotations

from fnmatch import fnmatchcase

_ALWAYS_SO = "leave it out: it is always so here"
_NOT_HERE = "leave it out: there is nothing like it here"

_VARIABLES = {
    "FLUJO_PROJECT_ROOT": "set FLUJO_CONFIG_PATH to the file, and PYTHONPATH to the folder of your modules",
    "FLUJO_TEST_MODE": "leave it out: there is no test mode; flujo_worker.testing runs pipelines without services",
    "FLUJO_DEBUG_PROMPTS": "set FLUJO_LOG_PROMPTS=full",
    "FLUJO_TRACE_PREVIEW_LEN": "set FLUJO_LOG_PROMPTS to off, preview or full; `flujo lens trace --prompt-preview-len` cuts what is shown",
    "FLUJO_DISABLE_TRACING": "leave it out: the trace is the rows that carry the run; FLUJO_LOG_PROMPTS=off keeps prompts out of it",
    "FLUJO_AUTO_MIGRATE": "leave it out, and run `flujo migrate` before the workers",
    "FLUJO_STRICT_CONTEXT": _ALWAYS_SO,
    "FLUJO_STRICT_DSL": _ALWAYS_SO,
    "FLUJO_SHADOW_EVAL_*": _NOT_HERE,
    "FLUJO_GOVERNANCE_*": _NOT_HERE,
}

_KEYS = {
    "env_file": "leave it out: no file of variables is read; let what starts the process do it, as compose, systemd and honcho can",
    "governance_policy_module": _NOT_HERE,
    "settings": "leave it out: agent_timeout is agents.agent_timeout_s here, default models are agents.default_review_model and its like, postgres_pool_max is worker.pool_max",
    "run": "give them to `flujo run` as options",
    **dict.fromkeys(("architect", "bench", "lockfile", "solve"), _NOT_HERE),
}


def of_variable(name: str) -> str | None:
    """Say what serves in the place of a variable of the original; None where it is none."""
    return next((hint for pattern, hint in _VARIABLES.items() if fnmatchcase(name, pattern)), None)


def of_key(name: str) -> str | None:
    """Say what serves in the place of a key, or of a section, of the original's file; None where it is none."""
    return _KEYS.get(name)
