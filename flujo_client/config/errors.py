"""The message for what is wrong with settings: the place, the key, what is wrong and how to fix it. Never a value, which may be a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

import pydantic
from pydantic import BaseModel

from flujo_client.config.toml_positions import Key, Written
from flujo_client.contract.suggestions import closest_match, did_you_mean
from flujo_client.errors import SettingsError

MAX_FINDINGS_SHOWN, LONGEST_NAME = 20, 80
KEYRINGS = ("signing_keys", "value_keys")
"""The settings that map the ids of keys to secrets."""
_FOLLOWS = "default_factory_not_called"
"""The message for a default that depends on an invalid value."""
_ALWAYS_SO = "leave it out: this is always the case here"
_NOT_HERE = "leave it out: it has no counterpart here"

LEGACY_VARIABLES = {
    "FLUJO_PROJECT_ROOT": "set FLUJO_CONFIG_PATH to the file, and PYTHONPATH to the folder of your modules",
    "FLUJO_TEST_MODE": "leave it out: there is no test mode; flujo_worker.testing runs pipelines without services",
    "FLUJO_DEBUG_PROMPTS": "set FLUJO_LOG_PROMPTS=full",
    "FLUJO_TRACE_PREVIEW_LEN": "set FLUJO_LOG_PROMPTS to off, preview or full; `flujo lens trace --prompt-preview-len` cuts what is shown",
    "FLUJO_DISABLE_TRACING": "leave it out: the trace is the rows that carry the run; FLUJO_LOG_PROMPTS=off leaves prompts out of it",
    "FLUJO_AUTO_MIGRATE": "leave it out, and run `flujo migrate` before the workers",
    "FLUJO_STRICT_CONTEXT": _ALWAYS_SO,
    "FLUJO_STRICT_DSL": _ALWAYS_SO,
    "FLUJO_SHADOW_EVAL_*": _NOT_HERE,
    "FLUJO_GOVERNANCE_*": _NOT_HERE,
}

_LEGACY_KEYS = {
    "env_file": "leave it out: files of variables are not read; let the program that starts the process read them, as compose, systemd and honcho can",
    "governance_policy_module": _NOT_HERE,
    "settings": "leave it out: agent_timeout is agents.agent_timeout_s here, default models are agents.default_review_model and its like, postgres_pool_max is worker.pool_max, enabled_template_filters is validation.enabled_template_filters",
    "run": "pass them to `flujo run` as options",
    **dict.fromkeys(("architect", "bench", "lockfile", "solve"), _NOT_HERE),
}


class Origins:
    """The source of each value: the file, or the variable that sets it, by the dotted name of the setting."""

    def __init__(self, written: Written | None, variables: Mapping[str, str], sections: Iterable[str]) -> None:
        self._written, self._variables, self._sections = written, variables, frozenset(sections)

    def of(self, location: Key) -> str | None:
        """Return the variable, or the file and the line, that sets this; None if neither does."""
        line = self._line(location)
        return f"{self._written.path}:{line}" if line and self._written else self._variable(location)

    def order(self, location: Key) -> float:
        """Return the sort key of a finding: the line that sets it; what no line sets comes last."""
        return self._line(location) or float("inf")

    @property
    def whole(self) -> str:
        """Return the place of a contradiction between several settings."""
        return str(self._written.path) if self._written else "the environment"

    def _line(self, location: Key) -> int | None:
        return self._written.line(location) if self._written and self._variable(location) is None else None

    def _variable(self, location: Key) -> str | None:
        depth = 2 if location and location[0] in self._sections else 1
        return self._variables.get(".".join(location[:depth]))


def settings_error(
    error: pydantic.ValidationError,
    model: type[BaseModel],
    values: Mapping[str, Any],
    known: Iterable[str],
    origins: Origins,
) -> SettingsError:
    """Return an error for what pydantic found, without its input: first the file's settings, in the order of its lines, then the rest."""
    everything: Sequence[Mapping[str, Any]] = error.errors(include_url=False, include_input=False)
    findings = [each for each in everything if each["type"] != _FOLLOWS]
    findings.sort(key=lambda each: origins.order(_path(each["loc"])))
    lines = [_line(finding, origins) for finding in findings[:MAX_FINDINGS_SHOWN]]
    if len(findings) > MAX_FINDINGS_SHOWN:
        lines.append(f"and {len(findings) - MAX_FINDINGS_SHOWN} more")
    ways_out = ((finding, _way_out(finding, model, values, known)) for finding in findings[:MAX_FINDINGS_SHOWN])
    finding, way_out = next((each for each in ways_out if each[1]), ({}, None))
    if way_out and len(findings) > 1:
        way_out = f"{_name(_shown(finding['loc']))}: {way_out}"
    return SettingsError("\n".join(lines), suggestion=way_out)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the nearest of what is known, by its last part too; all of it where none is near and there are not too many."""
    by_last_part = {key.rpartition(".")[2]: key for key in known}
    candidates = by_last_part | {key: key for key in known}
    close = closest_match(name, candidates) or closest_match(name.rpartition(".")[2], candidates)
    if close is not None:
        return f"did you mean {candidates[close]}?"
    names = sorted(known)
    is_short = len(names) <= MAX_FINDINGS_SHOWN
    return f"known are {', '.join(names)}" if is_short else "docs/reference/configuration.md lists all"


def _line(finding: Mapping[str, Any], origins: Origins) -> str:
    location = _shown(finding["loc"])
    where = origins.of(_path(finding["loc"])) or origins.whole
    is_unknown = finding["type"] == "extra_forbidden"
    what = "unknown key" if is_unknown else finding["msg"].removeprefix("Value error, ")
    return f"{where}: {_name(location)}: {what}" if location else f"{where}: {what}"


def _path(location: tuple[int | str, ...]) -> Key:
    return tuple(str(part) for part in location if part != "[key]")


def _shown(location: tuple[int | str, ...]) -> Key:
    """Return the key to show. Inside a keyring it may be a secret that was written instead of an id."""
    path = _path(location)
    return path[:1] if path[:1] and path[0] in KEYRINGS else path


def _name(location: Key) -> str:
    name = ".".join(f'"{part}"' if "." in part else part for part in location)
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _way_out(
    finding: Mapping[str, Any], model: type[BaseModel], values: Mapping[str, Any], known: Iterable[str]
) -> str | None:
    """Return the nearest key for an unknown one, the nearest valid word for an invalid one."""
    location = tuple(map(str, finding["loc"]))
    if finding["type"] == "extra_forbidden":
        name, fields = ".".join(location), _fields_at(model, location)
        names = {*known, *model.model_fields} if len(location) == 1 else known
        return _LEGACY_KEYS.get(name) or (nearest(name, names) if fields is None else nearest(location[-1], fields))
    if finding["type"] != "literal_error":
        return None
    given: Any = values
    for part in finding["loc"]:
        given = given.get(part) if hasattr(given, "get") else None
    return did_you_mean(given, re.findall(r"'([^']+)'", finding["ctx"]["expected"]))


def _fields_at(model: type[BaseModel], location: Key) -> list[str] | None:
    """Return the fields of the table that this is in, if that is a table inside a section."""
    found, depth = model, 0
    for part in location[:-1]:
        field = found.model_fields.get(part)
        inner = next(_models(field.annotation), None) if field is not None else None
        found, depth = (inner, depth + 1) if inner is not None else (found, depth)
    return list(found.model_fields) if depth > 1 else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def legacy_variable(name: str) -> str | None:
    """Return the replacement of a variable of the original; None if it is not one."""
    return next((hint for pattern, hint in LEGACY_VARIABLES.items() if fnmatchcase(name, pattern)), None)
