"""Settings: what `flujo.toml` and the environment say, read once and checked.

This is the only module of both packages that reads either (M-045); everything else is handed a `Settings`. It must not
open connections or know what a setting is used for. In: a path and a mapping of environment variables. Out: a frozen
`Settings`, or a `SettingsError` that names the key, where it was found and what to write instead, never a secret.

Every key has one variable: `FLUJO_<KEY>` at the top level, `FLUJO_<SECTION>_<KEY>` inside a section.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, Field, SecretStr, model_validator

from flujo_client.errors import SettingsError
from flujo_client.sections import (
    Agents,
    Aros,
    BackgroundTasks,
    Breakers,
    Budgets,
    Cost,
    Events,
    Health,
    Limits,
    Log,
    ModulePrefix,
    PostgresUrl,
    RedisUrl,
    Retry,
    Section,
    SigningKeys,
    Template,
    Worker,
    listed,
)

FILE_NAME = "flujo.toml"
CONFIG_PATH = "FLUJO_CONFIG_PATH"

_ENV_ONLY = frozenset({"failpoints", "demo_model"})
_FILE_ALIASES = {"state_uri": "database_url", "blueprint_allowed_imports": "allowed_imports"}
_OTHER_NAMES = {
    "database_url": ("FLUJO_STATE_URI", "DATABASE_URL"),
    "broker_url": ("CELERY_BROKER_URL", "REDIS_URL"),
}
# Variables with our prefix that others read: the benchmarks, and click for `flujo run` and `flujo lens`.
_FOREIGN = re.compile(r"FLUJO_BENCH_\w+|FLUJO_INPUT|FLUJO_LENS_TIMEOUT")

_PASSWORD_IN_URL = re.compile(r"(?s)(://[^:]*:).*@")
_SECRET_IN_QUERY = re.compile(r"(?i)([?&](?:\w*password|passwd|pwd|secret|token|api_?key)=)[^&#]*")


def mask_url(url: str) -> str:
    """Give `url` back with its password as `***`; in doubt more is hidden, never less."""
    return _SECRET_IN_QUERY.sub(r"\1***", _PASSWORD_IN_URL.sub(r"\1***@", url))


def _imports_by_mode(known: dict[str, Any]) -> tuple[str, ...]:
    return ("*",) if known.get("mode") == "development" else ()


def _broker_by_default(known: dict[str, Any]) -> str | None:
    return known.get("broker_url")


class Settings(Section):
    """Everything that can be set, frozen (requirements §2.7). Its repr shows no password and no signing secret.

    Made by `ConfigManager`, which turns what pydantic finds wrong into a `SettingsError`.
    """

    mode: Literal["development", "production"] = "development"
    database_url: PostgresUrl | None = None
    broker_url: RedisUrl | None = None
    result_backend_url: RedisUrl | None = Field(default_factory=_broker_by_default)
    broker_key_prefix: str = ""
    prepare_statements: bool = True
    embedded_dir: Path = Path(".flujo")
    allowed_imports: Annotated[tuple[ModulePrefix, ...], BeforeValidator(listed)] = Field(
        default_factory=_imports_by_mode
    )
    signing_keys: SigningKeys = Field(default_factory=dict)
    failpoints: str = ""
    demo_model: str | None = None
    limits: Limits = Limits()
    worker: Worker = Worker()
    retry: Retry = Retry()
    breakers: Breakers = Breakers()
    agents: Agents = Agents()
    template: Template = Template()
    aros: Aros = Aros()
    budgets: Budgets = Budgets()
    cost: Cost = Cost()
    background_tasks: BackgroundTasks = BackgroundTasks()
    health: Health = Health()
    log: Log = Log()
    events: Events = Events()

    @property
    def is_embedded(self) -> bool:
        """Tell whether Postgres and Redis are to be started from wheels, because none is named."""
        return self.database_url is None and self.broker_url is None

    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """Give the signing keys with their **secrets**: the first signs, all verify."""
        return tuple((name, secret.get_secret_value().encode()) for name, secret in self.signing_keys.items())

    def with_services(self, database_url: str, broker_url: str) -> Settings:
        """Give a copy that uses these services; a result backend of its own stays. Raises SettingsError."""
        own_backend = self.result_backend_url if self.result_backend_url != self.broker_url else broker_url
        services = {"database_url": database_url, "broker_url": broker_url, "result_backend_url": own_backend}
        return _checked(self._written() | services, {})

    def as_environment(self) -> dict[str, str]:
        """Write everything as variables, **secrets included**, for a child process that shall have the same."""
        return {_VARIABLES[name][0]: text for name, value in _flat(self._written()) if (text := _text(value))}

    def _written(self) -> dict[str, Any]:
        """Give everything, `[aros]` only as far as somebody wrote it: that it is written is what turns it on (C-05)."""
        return self.model_dump(by_alias=True) | {"aros": self.aros.model_dump(exclude_unset=True)}

    @model_validator(mode="after")
    def _services_together(self) -> Self:
        if (self.database_url is None) != (self.broker_url is None):
            given, missing = ("database_url", "broker_url")[:: 1 if self.database_url else -1]
            raise ValueError(f"{given} is set but {missing} is missing: set {_VARIABLES[missing][0]}, or neither")
        if self.is_embedded and self.result_backend_url is not None:
            raise ValueError("result_backend_url is set but broker_url and database_url are missing")
        return self

    @model_validator(mode="after")
    def _fit_for_production(self) -> Self:
        if self.mode == "production":
            named = {
                "database_url and broker_url": not self.is_embedded,
                "allowed_imports": self.allowed_imports,
                "signing_keys": self.signing_keys,
            }
            if missing := [name for name, value in named.items() if not value]:
                raise ValueError(f'mode = "production" demands {", ".join(missing)}')
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield (
                name,
                mask_url(value) if name in {"database_url", "broker_url", "result_backend_url"} and value else value,
            )


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield name, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, inner = name.partition(".")
        if dot and section in _SECTIONS:
            tree.setdefault(section, {})[inner] = value
        else:
            tree[name] = value
    return tree


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and any(isinstance(each, SecretStr) for each in value.values()):
        return ",".join(f"{name}:{secret.get_secret_value()}" for name, secret in value.items())
    if isinstance(value, Mapping):
        return json.dumps(value) if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


_SECTIONS = {name for name, field in Settings.model_fields.items() if isinstance(field.default, Section)}
# Every setting and the variables that carry it; the first that is set wins.
_VARIABLES = {
    name: (f"FLUJO_{name.replace('.', '_').upper()}", *_OTHER_NAMES.get(name, ()))
    for name, _ in _flat(Settings().model_dump(by_alias=True))
}


class ConfigManager:
    """The reader of `flujo.toml` and the environment: built-in < file < environment (M-045).

    The file is `path`, else what `FLUJO_CONFIG_PATH` names, else the nearest `flujo.toml` from the working directory
    upwards, else none.
    """

    def __init__(self, path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._environ = os.environ if environ is None else environ

    def settings(self) -> Settings:
        """Read everything anew. Raises SettingsError for what is unknown, ill-formed, contradictory or missing."""
        _refuse_unknown_variables(self._environ)
        path = self._file()
        written = _read(path) if path else {}
        variables = {name: found for name in _VARIABLES if (found := self._variable(name))}
        places = dict.fromkeys(written, str(path)) | variables
        values = written | {name: self._environ[variable] for name, variable in variables.items()}
        return _checked(_nested(values), places, default=str(path) if path else "the environment")

    def child_environment(self, settings: Settings) -> dict[str, str]:
        """Give this process's environment with `settings` written over it, **secrets included**."""
        return {**self._environ, **settings.as_environment()}

    def _file(self) -> Path | None:
        named = self._path or self._environ.get(CONFIG_PATH)
        if named:
            return Path(named)
        here = Path.cwd()
        return next((file for folder in (here, *here.parents) if (file := folder / FILE_NAME).is_file()), None)

    def _variable(self, name: str) -> str | None:
        """Name the variable that sets this; an empty one counts as not set, as compose files write it."""
        return next((variable for variable in _VARIABLES[name] if self._environ.get(variable)), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})", suggestion="check the path") from None
    except ValueError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None
    for alias, name in _FILE_ALIASES.items():
        if alias in tree and name in tree:
            raise SettingsError(f"{path}: `{alias}` and `{name}` mean the same", suggestion=f"keep `{name}`")
        if alias in tree:
            tree[name] = tree.pop(alias)
    if refused := _ENV_ONLY & tree.keys():
        name = min(refused)
        raise SettingsError(f"{path}: `{name}` is read from the environment only", suggestion=_VARIABLES[name][0])
    if misplaced := next((name for name in _SECTIONS & tree.keys() if not isinstance(tree[name], dict)), None):
        raise SettingsError(f"{path}: `{misplaced}` is a section", suggestion=f"write it as [{misplaced}]")
    if tree.get("aros") == {}:
        tree["aros"] = {"enabled": True}  # an empty table is a written one
    return dict(_flat(tree))


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable for names in _VARIABLES.values() for variable in names} | {CONFIG_PATH}
    ours = (variable for variable in environ if variable.startswith("FLUJO_"))
    for variable in sorted(ours):
        if variable not in known and not _FOREIGN.fullmatch(variable):
            raise SettingsError(f"environment: unknown variable {variable}", suggestion=_nearest(variable, known))


def _nearest(name: str, known: Iterable[str]) -> str:
    by_last_part = {key.rpartition(".")[2]: key for key in known}
    candidates = by_last_part | {key: key for key in known}
    close = difflib.get_close_matches(name, candidates, n=1) or difflib.get_close_matches(
        name.rpartition(".")[2], candidates, n=1
    )
    return f"did you mean {candidates[close[0]]}?" if close else f"known are {', '.join(sorted(known))}"


def _checked(values: Mapping[str, Any], places: Mapping[str, str], default: str = "settings") -> Settings:
    """Build the settings; what pydantic finds is told without its input, which may be a secret."""
    try:
        return Settings.model_validate(values)
    except pydantic.ValidationError as error:
        findings = error.errors(include_url=False, include_input=False)
    told = [_finding(finding["loc"], finding["msg"], places, default) for finding in findings]
    raise SettingsError("\n".join(told), suggestion=next(filter(None, (_way_out(f, values) for f in findings)), None))


def _way_out(finding: Mapping[str, Any], values: Mapping[str, Any]) -> str | None:
    """Name the nearest key for an unknown one, the nearest word for one that is none of a few."""
    if finding["type"] == "extra_forbidden":
        return _nearest(_dotted(finding["loc"]), _VARIABLES.keys() - _ENV_ONLY)
    if finding["type"] != "literal_error":
        return None
    given: Any = values
    for part in finding["loc"]:
        given = given.get(part) if isinstance(given, Mapping) else None
    close = difflib.get_close_matches(str(given), re.findall(r"'([^']+)'", finding["ctx"]["expected"]), n=1)
    return f"did you mean {close[0]!r}?" if close else None


def _dotted(location: tuple[int | str, ...]) -> str:
    depth = 2 if location and location[0] in _SECTIONS else 1
    return ".".join(map(str, location[:depth]))


def _finding(location: tuple[int | str, ...], message: str, places: Mapping[str, str], default: str) -> str:
    name = _dotted(location)
    where = places.get(name, default)
    what = "unknown key" if message.startswith("Extra inputs") else message.removeprefix("Value error, ")
    return f"{where}: {name}: {what}" if name else f"{where}: {what}"
