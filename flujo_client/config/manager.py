"""Settings: the values of `flujo.toml` and the environment, read once and checked.

This is the only module of both packages that reads either; everything else receives a `Settings`. It must not open connections. A
`SettingsError` names the key, where it was found and what to write instead, never a secret. Every key has one variable: `FLUJO_<KEY>` at the
top level, `FLUJO_<SECTION>_<KEY>` inside a section.
"""

from __future__ import annotations

import ast
import hmac
import json
import os
import re
import sys
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

import pydantic
from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, model_validator

from flujo_client.config import models
from flujo_client.config.errors import KEYRINGS, Origins, legacy_variable, nearest, settings_error
from flujo_client.config.toml_positions import Written, read
from flujo_client.errors import SettingsError

if TYPE_CHECKING:
    from celery import Celery

    from flujo_client.config.app_settings import Found

FILE_NAME = "flujo.toml"
CONFIG_PATH, APP = "FLUJO_CONFIG_PATH", "FLUJO_APP"

_ENV_ONLY = frozenset({"failpoints", "demo_model"})
SENTINEL_ANSWER_S = 5.0
"""Seconds within which a Sentinel has to answer."""
_FILE_ALIASES = {"state_uri": "database_url", "blueprint_allowed_imports": "allowed_imports"}
_OTHER_NAMES = {
    "database_url": ("FLUJO_STATE_URI", "DATABASE_URL"),
    "broker_url": ("CELERY_BROKER_URL", "REDIS_URL"),
    "hooks.strict": ("FLUJO_STRICT_HOOKS",),
}
# Variables with our prefix that others read: the benchmarks, and click for options of `flujo`.
_FOREIGN = re.compile(r"FLUJO_(BENCH|CHAOS)_\w+|FLUJO_INPUT|FLUJO_LENS_TIMEOUT|FLUJO_DEBUG|FLUJO_UI")


def _broker_by_default(known: dict[str, Any]) -> models.RedisUrl | None:
    url: models.RedisUrl | None = known.get("broker_url")
    return None if url is not None and url.get_secret_value().startswith(models.AMQP) else url


def _revealed(url: models.SecretUrl[str] | None) -> str:
    if url is None:
        way_out = "set FLUJO_DATABASE_URL and FLUJO_BROKER_URL, or use the services of `flujo up`"
        raise SettingsError("no services are set", suggestion=f"{way_out}: flujo dev env COMMAND")
    return url.get_secret_value()


class Settings(models.Section):
    """All settings, frozen.

    URLs and signing keys hide passwords and secrets when shown or dumped; `database()`, `broker()`, `results()` and `keys()` return them
    whole. `ConfigManager` makes it, and turns pydantic's errors into a `SettingsError`.
    """

    mode: Literal["development", "production"] = "development"
    """`development` or `production`, which requires services, `allowed_imports` and `signing_keys`"""
    app: str | None = Field(None, min_length=1)
    """your Celery app, named as for `celery -A`: its [own settings](../how-to/attach-to-an-existing-celery-app.md) count where neither this file nor a variable says anything. An empty variable: none"""
    database_url: models.PostgresUrl | None = None
    """Postgres, `postgresql://…`"""
    broker_url: models.BrokerUrl | None = None
    """Redis, `redis://…`, or [RabbitMQ](../how-to/use-rabbitmq.md), `amqp://…`; set both URLs or neither"""
    result_backend_url: models.RedisUrl | None = Field(default_factory=_broker_by_default)
    """Redis for results of chord members; by default the broker. With RabbitMQ: for breakers, rate limits and cached results, by default none"""
    chords: bool = True
    """count the branches of a fan-out as a Celery chord, in Redis; otherwise each worker looks in Postgres whether the branch that it closed was the last. The same in all clients and workers"""
    sentinel_master: str | None = Field(None, min_length=1)
    """the name under which [Sentinels](#redis-over-tls-sentinel) watch the primary"""
    sentinel_password: SecretStr | None = None
    """the Sentinels' own password, if they have one"""
    broker_key_prefix: str = ""
    """prefix of every key and channel in Redis, for a [user of its own](../how-to/deploy.md#a-redis-user); the app's `global_keyprefix` when attached"""
    prepare_statements: bool = True
    """prepare statements in Postgres, except [behind a pooler](#pgbouncer)"""
    embedded_dir: Path = Path(".flujo")
    """the data folder of embedded services"""
    allowed_imports: Annotated[tuple[models.ModulePrefix, ...], BeforeValidator(models.listed)] = Field(
        default_factory=lambda known: ("*",) if known.get("mode") == "development" else ()
    )
    """prefixes of modules that may be imported for pipelines, agents and classes; `*`, in development only, allows all. Of Flujo itself, only [a few names](blueprints.md#yaml-syntax) are allowed, without a prefix"""
    signing_keys: models.SigningKeys = Field(default_factory=dict)
    """`id:secret` pairs of at least 16 bytes each; the first signs messages and tokens, all verify"""
    value_keys: models.ValueKeys = Field(default_factory=dict)
    """`id:secret` pairs of at least 32 bytes each, to [encrypt values](../how-to/deploy.md#encrypt-values); the first encrypts, all decrypt. Needs `flujo-worker[encryption]`"""
    failpoints: str = ""
    """for fault tests only; not in the file"""
    demo_model: str | None = None
    """the model that `flujo demo` asks; not in the file"""
    limits: models.SizeLimits = models.SizeLimits()
    worker: models.Worker = models.Worker()
    runs: models.Runs = models.Runs()
    retry: models.Retry = models.Retry()
    breakers: models.BreakerSettings = models.BreakerSettings()
    rate_limits: models.RateLimitSettings = models.RateLimitSettings()
    agents: models.Agents = models.Agents()
    template: models.TemplateSettings = models.TemplateSettings()
    aros: models.Aros = models.Aros()
    budgets: models.Budgets = models.Budgets()
    cost: models.Cost = models.Cost()
    background_tasks: models.BackgroundTasks = models.BackgroundTasks()
    health: models.Health = models.Health()
    log: models.Log = models.Log()
    events: models.Events = models.Events()
    retention: models.Retention = models.Retention()
    admission: models.AdmissionSettings = models.AdmissionSettings()
    hooks: models.HookSettings = models.HookSettings()
    cassettes: models.Cassettes = models.Cassettes()
    traces: models.Traces = models.Traces()
    validation: models.Validation = models.Validation()
    streams: models.Streams = models.Streams()
    ui: models.Ui = models.Ui()
    metrics: models.Metrics = models.Metrics()

    _is_joined: bool = PrivateAttr(default=False)

    @property
    def services_named(self) -> str:
        """Return which services these are, in words and without passwords."""
        if self.is_embedded or self._is_joined:
            folder = self.embedded_dir.absolute()
            return f"the embedded services in {folder}, which are used because no database_url is set here"
        return f"the services at {self.database_url}"

    @property
    def is_embedded(self) -> bool:
        """Return whether Postgres and Redis are to be started from wheels, because none is named."""
        return self.database_url is None and self.broker_url is None

    def database(self) -> str:
        """Return the database's URL with its **password**; raises SettingsError where none is set."""
        return _revealed(self.database_url)

    def broker(self) -> str:
        """Return the broker's URL with its **password**; raises SettingsError where none is set."""
        return _revealed(self.broker_url)

    @property
    def uses_rabbitmq(self) -> bool:
        """Return whether messages go through RabbitMQ; otherwise they go through Redis."""
        return self.broker_url is not None and self.broker_url.get_secret_value().startswith(models.AMQP)

    @property
    def broker_name(self) -> str:
        """Return which broker it is, as people see it."""
        return "rabbitmq" if self.uses_rabbitmq else "redis"

    @property
    def has_redis(self) -> bool:
        """Return whether there is a Redis in which workers can share breakers, rate limits and cached results."""
        return not self.uses_rabbitmq or self.result_backend_url is not None

    def results(self) -> str:
        """Return the result backend's URL with its **password**; raises SettingsError where none is set."""
        return _revealed(self.result_backend_url)

    @property
    def counts_chords(self) -> bool:
        """Return whether a result backend counts the branches of fan-outs, so that the last one signals the join."""
        return self.chords and not self.uses_rabbitmq

    def redis(self) -> str:
        """Return the URL, with its **password**, of the Redis of breakers and rate limits; raises SettingsError where there is none."""
        return self.results() if self.uses_rabbitmq else self.broker()

    def sentinel_options(self) -> dict[str, Any]:
        """Return the options of Sentinel as kombu and Celery name them, with its **password**; empty without Sentinel."""
        if self.sentinel_master is None:
            return {}
        if self.sentinel_password is None:
            return {"master_name": self.sentinel_master}
        asking = {"socket_timeout": SENTINEL_ANSWER_S, "socket_connect_timeout": SENTINEL_ANSWER_S}
        password = self.sentinel_password.get_secret_value()
        return {"master_name": self.sentinel_master, "sentinel_kwargs": {"password": password, **asking}}

    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """Return the signing keys with their **secrets**: the first signs, all verify."""
        return _pairs(self.signing_keys)

    def encryption_keys(self) -> tuple[tuple[str, bytes], ...]:
        """Return the keys of values with their **secrets**: the first encrypts, all decrypt."""
        return _pairs(self.value_keys)

    def key_marks(self) -> tuple[str, ...]:
        """Return a mark of each key, such as `signing_keys.2026a:9f86d081884c7d65`: it tells secrets under one id apart, and reveals none."""
        rings = {ring: _pairs(getattr(self, ring)) for ring in KEYRINGS}
        return tuple(_mark(f"{ring}.{name}", secret) for ring, keys in rings.items() for name, secret in keys)

    def with_services(self, database_url: str, broker_url: str) -> Settings:
        """Return a copy that uses these services; an explicit result backend stays. Raises SettingsError."""
        own_backend = self.result_backend_url if self.result_backend_url != self.broker_url else broker_url
        services = {"database_url": database_url, "broker_url": broker_url, "result_backend_url": own_backend}
        joined = _checked(self._written() | services, Origins(None, {}, _SECTIONS))
        joined._is_joined = self.is_embedded  # noqa: SLF001 - its own
        return joined

    def with_database(self, database_url: str) -> Settings:
        """Give a copy that uses this database. Raises SettingsError."""
        return _checked(self._written() | {"database_url": database_url}, Origins(None, {}, _SECTIONS))

    def as_environment(self) -> dict[str, str]:
        """Write everything as variables, **secrets included**, for a child process that shall have the same. It needs no app for it."""
        written = {_VARIABLES[name][0]: text for name, value in _flat(self._written()) if (text := _text(value))}
        return {**written, APP: ""}

    def _written(self) -> dict[str, Any]:
        """Return everything, `[aros]` only as far as it is written: writing it turns it on."""
        return self.model_dump(by_alias=True) | {"aros": self.aros.model_dump(exclude_unset=True)}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.database_url is None) != (self.broker_url is None):
            given, missing = ("database_url", "broker_url")[:: 1 if self.database_url else -1]
            raise ValueError(f"{given} is set but {missing} is missing: set {_VARIABLES[missing][0]}, or neither")
        if self.is_embedded and self.result_backend_url is not None:
            raise ValueError("result_backend_url is set but broker_url and database_url are missing")
        for name in ("broker_url", "result_backend_url"):
            url = getattr(self, name)
            if url is not None and url.get_secret_value().startswith(models.SENTINEL) and self.sentinel_master is None:
                way_out = f"set {_VARIABLES['sentinel_master'][0]} to the name under which they watch the primary, such as mymaster"
                raise ValueError(f"{name} names Sentinels but sentinel_master is missing: {way_out}")
        if self.mode == "production":
            named = {
                "database_url and broker_url": not self.is_embedded,
                "allowed_imports": self.allowed_imports,
                "signing_keys": self.signing_keys,
            }
            if lacking := [name for name, value in named.items() if not value]:
                raise ValueError(f'mode = "production" requires {", ".join(lacking)}')
            if self.cassettes != models.Cassettes():
                raise ValueError('mode = "production" uses no cassettes: remove `cassettes.mode`')
        return self


def _pairs(keys: Mapping[str, SecretStr]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, secret.get_secret_value().encode()) for name, secret in keys.items())


@lru_cache(maxsize=64)
def _mark(key: str, secret: bytes) -> str:
    """Return the mark of a key. Cached: each enqueued run needs the marks of all keys."""
    return f"{key}:{hmac.digest(secret, b'flujo.mark.' + key.encode(), 'sha256').hex()[:16]}"


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield name, value


def _over(tree: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Write values with dotted names over a tree."""
    made = {name: dict(item) if name in _SECTIONS else item for name, item in tree.items()}
    for name, value in flat.items():
        section, dot, inner = name.partition(".")
        if dot:
            made.setdefault(section, {})[inner] = value
        else:
            made[name] = value
    return made


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and any(isinstance(each, SecretStr) for each in value.values()):
        return ",".join(f"{name}:{secret.get_secret_value()}" for name, secret in value.items())
    if isinstance(value, Mapping):
        return json.dumps(value) if value else ""
    if isinstance(value, models.SecretUrl | SecretStr):
        return str(value.get_secret_value())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def _fields(model: type[models.Section], above: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield every setting, its class and its field."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, models.Section):
            yield from _fields(type(field.default), f"{name}.")
        else:
            yield f"{above}{field.alias or name}", model.__name__, name


@cache
def meanings() -> dict[str, str]:
    """Return the meaning of each setting, as the reference shows it: the text below its field, empty where there is no source."""
    texts: dict[tuple[str, str], str] = {}
    with suppress(OSError):
        for module in (models, sys.modules[__name__]):
            for kind in (each for each in ast.parse(getsource(module)).body if isinstance(each, ast.ClassDef)):
                for field, text in pairwise(kind.body):
                    if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                        texts[kind.name, ast.unparse(field.target)] = ast.literal_eval(text.value)
    return {name: texts.get((kind, field), "") for name, kind, field in _fields(Settings)}


_SECTIONS = {name for name, field in Settings.model_fields.items() if isinstance(field.default, models.Section)}
# Every setting and the variables that carry it; the first that is set wins.
_VARIABLES = {
    name: (f"FLUJO_{name.replace('.', '_').upper()}", *_OTHER_NAMES.get(name, ())) for name, *_ in _fields(Settings)
}


class Setting(NamedTuple):
    """One setting as it is in force: `source` is built-in, file, variable or app, `place` the file and line, the variable's name, or what has it.

    `meaning` is its description in the reference, as Markdown. Passwords in the value are `***`; of signing keys there are the ids alone.
    """

    name: str
    value: Any
    source: str
    place: str | None
    meaning: str


class ConfigManager:
    """Read the settings: the environment overrides `flujo.toml`, which overrides a Celery app's own settings, which override the defaults.

    Args:
        path: the file; else the one in `FLUJO_CONFIG_PATH`, else the nearest `flujo.toml` from the working directory upwards.
        environ: the variables, by default this process's. Those with other names, such as `DATABASE_URL`, do not override an app.
        app: your app; by default the one that this process attached, else the one that `FLUJO_APP` or the file names.

    Attributes:
        attached: the app that this process attached last.
    """

    attached: ClassVar[Celery | None] = None

    def __init__(
        self, path: Path | None = None, *, environ: Mapping[str, str] | None = None, app: Celery | None = None
    ) -> None:
        self._path = path
        self._environ = os.environ if environ is None else environ
        self._app = app

    def settings(self) -> Settings:
        """Read everything again. Raises SettingsError for unknown, malformed, contradictory or missing values."""
        return self._read()[0]

    def explain(self) -> list[Setting]:
        """Return every setting with its value and where that came from, **without secrets**. Raises SettingsError as above."""
        settings, origins, sources = self._read()
        return [
            Setting(
                name,
                dict.fromkeys(value, "***") if name in KEYRINGS else value,
                sources.get(name, "built-in"),
                origins.of(tuple(name.split("."))) if name in sources else None,
                meanings()[name],
            )
            for name, value in _flat(settings.model_dump(mode="json", by_alias=True))
        ]

    def place(self, *key: str) -> str | None:
        """Return the variable, or the file and the line, that sets a key; None where it is built in. Raises SettingsError as above."""
        return self._read()[1].of(key)

    def _read(self) -> tuple[Settings, Origins, Mapping[str, str]]:
        """Return the settings, where each key is set, and the source of those that are not built in."""
        _refuse_unknown_variables(self._environ)
        path = self._file()
        written = _read(path) if path else None
        tree = written.tree if written else {}
        # An empty variable counts as not set, as compose files write it.
        set_ones = {name: filter(self._environ.get, known) for name, known in _VARIABLES.items()}
        variables = {name: found for name, known in set_ones.items() if (found := next(known, None))}
        common = {name for name, variable in variables.items() if not variable.startswith("FLUJO_")}
        apps = self._apps(tree.get("app"), known=(variables.keys() - common) | tree.keys())
        unused = set() if apps is None else common & (apps.keys() | tree.keys())
        variables = {name: variable for name, variable in variables.items() if name not in unused}
        apps = apps or {}
        origins = Origins(written, variables | {name: found.place for name, found in apps.items()}, _SECTIONS)
        texts = {name: models.Variable(self._environ[variable]) for name, variable in variables.items()}
        sources = {name: "file" for name, _ in _flat(tree)} | dict.fromkeys(variables, "variable")
        values = _over(tree, texts | {name: found.value for name, found in apps.items()})
        return _checked(values, origins), origins, sources | dict.fromkeys(apps, "app")

    def _apps(self, written: Any, known: Container[str]) -> dict[str, Found] | None:
        """Return what the app says, without what is known; `written` is its name in the file. None without an app."""
        app, reference = self._app or self.attached, self._environ.get(APP, written)
        if app is None and not (isinstance(reference, str) and reference):
            return None
        from flujo_client.config.app_settings import find_app, settings_of

        return settings_of(app or find_app(str(reference)), known)

    def child_environment(self, settings: Settings) -> dict[str, str]:
        """Return this process's environment with `settings` written over it, **secrets included**."""
        return {**self._environ, **settings.as_environment()}

    def opentelemetry(self) -> dict[str, str]:
        """Return the variables of OpenTelemetry if they name a collector of traces; nothing otherwise, and if they turn it off."""
        found = {name: value for name, value in self._environ.items() if name.startswith("OTEL_") and value}
        is_off = found.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        is_named = any(name in found for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"))
        exporters = found.get("OTEL_TRACES_EXPORTER", "otlp").replace(" ", "").split(",")
        return found if is_named and not is_off and "otlp" in exporters else {}

    def _file(self) -> Path | None:
        named = self._path or self._environ.get(CONFIG_PATH)
        if named:
            return Path(named)
        here = Path.cwd()
        return next((file for folder in (here, *here.parents) if os.path.lexists(file := folder / FILE_NAME)), None)


def _read(path: Path) -> Written:
    written = read(path)
    tree = written.tree
    for alias, name in _FILE_ALIASES.items():
        if alias in tree and name in tree:
            what = f"{path}:{written.line((alias,))}: `{alias}` and `{name}` mean the same"
            raise SettingsError(what, suggestion=f"keep `{name}`")
        if alias in tree:
            written.rename(alias, name)
    if refused := _ENV_ONLY & tree.keys():
        name = min(refused)
        what = f"{path}:{written.line((name,))}: `{name}` is read from the environment only"
        raise SettingsError(what, suggestion=_VARIABLES[name][0])
    if misplaced := next((name for name in _SECTIONS & tree.keys() if not isinstance(tree[name], dict)), None):
        place = f"{path}:{written.line((misplaced,))}"
        raise SettingsError(f"{place}: `{misplaced}` is a section", suggestion=f"write it as [{misplaced}]")
    if tree.get("aros") == {}:
        tree["aros"] = {"enabled": True}  # an empty table is a written one
    return written


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable for names in _VARIABLES.values() for variable in names} | {CONFIG_PATH}
    for variable in sorted(environ):
        if variable.startswith("FLUJO_") and variable not in known and not _FOREIGN.fullmatch(variable):
            way_out = legacy_variable(variable) or nearest(variable, known)
            raise SettingsError(f"environment: unknown variable {variable}", suggestion=way_out)


def _checked(values: Mapping[str, Any], origins: Origins) -> Settings:
    """Build the settings; what pydantic finds is reported without its input, which may be a secret."""
    try:
        return Settings.model_validate(values)
    except pydantic.ValidationError as error:
        refusal = settings_error(error, Settings, values, _VARIABLES.keys() - _ENV_ONLY, origins)
    raise refusal
