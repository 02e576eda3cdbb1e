"""The settings' sections: what each key may be. Values and their checks; reading them is `manager.py`'s work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Secret,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from flujo_client.contract.limits import Dollars, Tokens, UsageEstimate, UsageLimits
from flujo_client.plan.plan import OnChange
from flujo_client.redact import mask_url

MIN_KEY_BYTES = 16
MIN_VALUE_KEY_BYTES = 32


def service_url(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in schemes or not rest or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise ValueError(f"must be a URL that starts with {' or '.join(f'{name}://' for name in schemes)}")
        return url

    return AfterValidator(check)


def listed(value: Any) -> Any:
    """Read a comma-separated text as a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _module_prefix(text: str) -> str:
    if text != "*" and not all(part.isidentifier() for part in text.split(".")):
        raise ValueError("must be a module prefix such as `acme.agents`, or `*` for every module")
    return text


def _keys(value: Any) -> Any:
    """Read `id:secret` pairs, in a text or a list, as a mapping in the same order: the first one signs."""
    pairs = listed(value)
    if not isinstance(pairs, list):
        return pairs
    if not all(isinstance(pair, str) and ":" in pair for pair in pairs):
        raise ValueError("each key must be written as `id:secret`")
    keys = dict(pair.split(":", 1) for pair in pairs)
    if len(keys) < len(pairs):
        raise ValueError("two keys have the same id")
    return keys


def _secret(shortest: int) -> AfterValidator:
    def check(secret: SecretStr) -> SecretStr:
        text = secret.get_secret_value()
        if len(text.encode()) < shortest or "," in text or text.strip() != text:
            raise ValueError(f"a secret must have at least {shortest} bytes, no comma and no space around it")
        return secret

    return AfterValidator(check)


SENTINEL = "sentinel://"
Text = TypeVar("Text")


class SecretUrl(Secret[Text]):
    """A URL that shows its password only through `get_secret_value()`."""

    def _display(self) -> str:
        return mask_url(str(self.get_secret_value()))


def _with_a_port(url: str) -> str:
    """Refuse what redis-py and kombu would refuse later, and quote a piece of the password from."""
    try:
        _ = [urlsplit(each).port for each in url.split(";")]
    except ValueError:
        raise ValueError(
            "must be a URL with a number as its port; in a password write / as %2F, # as %23 and ? as %3F"
        ) from None
    return url


def _of_one_server(url: str) -> str:
    """Refuse several servers that are not Sentinels: clients and workers could use different ones."""
    if ";" in url and not all(each.startswith(SENTINEL) for each in url.split(";")):
        raise ValueError(
            "must name one Redis server, or Sentinels as `sentinel://one:26379/0;sentinel://other:26379/0` "
            "with `sentinel_master`"
        )
    return url


def _verifying(url: str) -> str:
    """Add the verification of the server's certificate to a URL without an option for it, which Celery would refuse."""
    if not url.startswith("rediss://") or "ssl_cert_reqs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"


PostgresUrl = SecretUrl[Annotated[str, service_url("postgresql", "postgres")]]
RedisUrl = SecretUrl[
    Annotated[
        str,
        AfterValidator(_of_one_server),
        service_url("redis", "rediss", "sentinel"),
        AfterValidator(_with_a_port),
        AfterValidator(_verifying),
    ]
]
TemplateFilter = Literal["upper", "lower", "default", "length", "tojson", "join"]
ModulePrefix = Annotated[str, AfterValidator(_module_prefix)]
KeyId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
SigningKeys = Annotated[dict[KeyId, Annotated[SecretStr, _secret(MIN_KEY_BYTES)]], BeforeValidator(_keys)]
ValueKeys = Annotated[dict[KeyId, Annotated[SecretStr, _secret(MIN_VALUE_KEY_BYTES)]], BeforeValidator(_keys)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
QueueName = Annotated[str, Field(pattern=r"^[\w.:-]+$", max_length=120)]
"""Keep the length out of the pattern: a word character repeated up to 120 times takes every process 40 ms to compile."""


class Variable(str):
    """The value of an environment variable: a text that represents a value of any type."""

    __slots__ = ()


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _kind(annotation: Any) -> type | None:
    """Return which of true or false, a whole number and a number this is, if any; an additional None changes nothing."""
    for each in (annotation, *get_args(annotation)):
        plain = get_args(each)[0] if get_origin(each) is Annotated else each
        if plain in _KINDS:
            kind: type = plain
            return kind
    return None


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject values of other types.

        A file has types, so there a text or `true` is not a number; only a variable's text may be converted.
        """
        kind = _kind(cls.model_fields[str(info.field_name)].annotation)
        is_other = isinstance(value, (bool, str)) if kind in (int, float) else not isinstance(value, bool)
        if kind is not None and value is not None and is_other and not isinstance(value, Variable):
            raise ValueError(f"must be {_KINDS[kind]}")
        return value


class SizeLimits(Section):
    """Maximum sizes in bytes.

    `snapshot_inline_bytes` counts the compressed snapshot, up to which it travels inside the message; `snapshot_max_bytes` the uncompressed
    JSON, above which enqueueing fails; `cache_value_max_bytes` a result in its stored form, above which it is not cached.
    """

    snapshot_inline_bytes: Annotated[int, Field(ge=0)] = 65_536
    snapshot_max_bytes: Count = 16_777_216
    message_max_bytes: Count = 16_777_216
    cache_value_max_bytes: Count = 1_048_576

    @model_validator(mode="after")
    def _inline_fits(self) -> Self:
        if self.snapshot_inline_bytes > self.snapshot_max_bytes:
            raise ValueError("snapshot_inline_bytes must be at most snapshot_max_bytes")
        # A message holds an input and a context, each a third longer as text, and the envelope around them.
        if self.message_max_bytes < 4 * self.snapshot_inline_bytes:
            raise ValueError("message_max_bytes must be at least four times snapshot_inline_bytes")
        return self


BUILD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def _build_name(text: str) -> str:
    if not BUILD_NAME.fullmatch(text):
        raise ValueError("must have up to 100 letters, digits and . _ + -, the first a letter or a digit")
    return text


BuildName = Annotated[str, AfterValidator(_build_name)]


class Worker(Section):
    """A worker process's options. Times in seconds; `pool_max` counts Postgres connections per process.

    `broker_acks` stores kombu's acknowledgements in Redis. Claims and leases recover lost work, with or without them. `build` names the
    worker's version of your code, such as a release or a commit. `heartbeat_file` is touched at each renewal of the lease, for probes; each
    process needs its own file. `shutdown_grace_s` is the time that a stopping worker continues its attempts before it hands them to other
    workers. `max_starved` is how often an attempt that timed out because its process was starved begins again without using up a retry.
    `max_left_behind` is the number of calls that ignore their cancellation before a process retires. `loop_blocked_s` is the time its event
    loop may be blocked before it takes no more messages.
    """

    lease_s: Seconds = 5.5
    renew_s: Seconds = 2.0
    sweep_s: Seconds = 1.0
    shutdown_grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 75.0
    max_lost: Count = 3
    max_starved: Annotated[int, Field(ge=0)] = 5
    max_left_behind: Count = 16
    loop_blocked_s: Seconds = 2.0
    pool_max: Count = 10
    concurrency: Count = 500
    broker_acks: bool = False
    attempts_queue: QueueName = "flujo.attempts"
    control_queue: QueueName = "flujo.control"
    heartbeat_file: Path | None = None
    build: BuildName | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(f"renew_s ({self.renew_s:g}) must be at most half of lease_s ({self.lease_s:g})")
        if self.attempts_queue == self.control_queue:
            raise ValueError("attempts_queue and control_queue must be different queues")
        return self


class Runs(Section):
    """The options of runs of pipelines that do not set them (ADR 37)."""

    on_change: OnChange = "carry_on"


class Retry(Section):
    """The delays before retries, in seconds; `jitter` is a share of the delay."""

    base_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    cap_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _cap_above_base(self) -> Self:
        if self.cap_s < self.base_s:
            raise ValueError(f"cap_s ({self.cap_s:g}) must be at least base_s ({self.base_s:g})")
        return self


Share = Annotated[float, Field(gt=0, le=1)]


class BreakerSettings(Section):
    """When calls of a model are suspended, and how they resume. Times in seconds.

    The share `rate` of failed calls opens a model's breaker if `window_s` has at least `least_calls`; below that, `failures` in a row do.
    After `recovery_s` `half_open_calls` are let through, and the same share of them decides. A call longer than `slow_s` is counted as
    slow; the share `slow_rate` of slow calls opens it too, where that is set.
    """

    enabled: bool = True
    failures: Count = 5
    window_s: Seconds = 60.0
    rate: Share = 0.5
    least_calls: Count = 20
    recovery_s: Seconds = 30.0
    half_open_calls: Count = 3
    slow_s: Seconds = 5.0
    slow_rate: Share | None = None


class ModelRate(Section):
    """The rate limit of a model. `per` names the calls that share a limit: those of each model, or those of each tenant."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    per: Annotated[tuple[Literal["model", "tenant"], ...], BeforeValidator(listed)] = ("model",)


def _model_patterns(value: dict[str, ModelRate]) -> dict[str, ModelRate]:
    for pattern in value:
        provider, separator, model = pattern.partition(":")
        if pattern != "*" and not (provider and separator and model and not re.search(r"\s", pattern)):
            raise ValueError(
                f"`{pattern}` must be `provider:model` or a pattern of it, such as `openai:gpt-4o*`, or `*`"
            )
    return value


class RateLimitSettings(Section):
    """The rate limits of models, for all workers together. `models` maps names and patterns of models to their limits.

    A model of which nothing is known reaches its full speed after `slow_start_s` seconds.
    """

    slow_start_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0
    models: Annotated[
        dict[str, ModelRate],
        BeforeValidator(lambda value: _table(value)),  # noqa: PLW0108 - it is defined below
        AfterValidator(_model_patterns),
    ] = Field(default_factory=dict)


ModelName = Annotated[str, Field(min_length=1)]


class Agents(Section):
    """The defaults of every agent call. Times in seconds.

    `cancel_grace_s` is how long code may take to end after it was cancelled; then its attempt ends without it.
    `default_…_model` is the model of that recipe of `flujo_worker.agents`, where none is given.
    """

    agent_timeout_s: Seconds = 60.0
    function_timeout_s: Seconds = 30.0
    cancel_grace_s: Seconds = 5.0
    default_review_model: ModelName = "openai:gpt-4o"
    default_solution_model: ModelName = "openai:gpt-4o"
    default_validator_model: ModelName = "openai:gpt-4o"
    default_reflection_model: ModelName = "openai:gpt-4o"
    default_self_improvement_model: ModelName = "openai:gpt-4o"
    default_repair_model: ModelName = "openai:gpt-4o"


class TemplateSettings(Section):
    """How prompts are rendered from templates.

    `undefined_variables` is the policy for a variable without a value: empty with a `template.undefined` event, empty, or an error.
    `log_resolution` records each template that was filled in as the event `template.resolved`, with names and no values. `folders` are
    searched for templates before Flujo's own. A prompt has at most `max_chars` characters and takes at most `max_s` seconds.
    """

    undefined_variables: Literal["warn", "strict", "ignore"] = "warn"
    log_resolution: bool = False
    folders: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    max_chars: Count = 1_000_000
    max_s: Seconds = 10.0


class Aros(Section):
    """What AROS does by default, where a step's `processing` block does not set it.

    The section counts only where it is written: a project without one, and a step without a block, are left alone.
    """

    enabled: bool = True
    structured_output_default: Annotated[
        Literal["off", "auto", "openai_json"],
        BeforeValidator(lambda text: text.lower() if isinstance(text, str) else text),
    ] = "auto"
    enable_aop_default: Literal["off", "minimal", "full"] = "minimal"
    coercion_tolerant_level: Annotated[int, Field(ge=0, le=2)] = 0
    max_unescape_depth: Annotated[int, Field(ge=0)] = 2
    anyof_strategy: Literal["first-pass"] = "first-pass"
    max_characters: Annotated[int, Field(ge=1)] = 16_000_000
    max_steps: Annotated[int, Field(ge=1)] = 250_000
    max_ms_per_mb: Annotated[float, Field(ge=0)] = 50.0
    enable_reasoning_precheck: bool = False
    correction_ledger_enabled: bool = False
    strict_schema: bool = False
    shadow_mode: bool = False

    def table(self) -> dict[str, Any] | None:
        """Return the section as plain data; None where it is not written."""
        return self.model_dump() if self.model_fields_set else None


def _table(value: Any) -> Any:
    """Read what a variable carries: JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be JSON, such as {"total_tokens_limit": 1000}') from None


class Budgets(Section):
    """The usage limits of runs, unless their code sets lower ones.

    `default` applies to each run whose pipeline is not named; `pipeline` maps names and patterns such as `billing-*` to limits, `tenant`
    those of tenants to limits for all their runs in one day, UTC. A variable contains JSON.
    """

    default: Annotated[UsageLimits | None, BeforeValidator(_table)] = None
    pipeline: Annotated[dict[str, UsageLimits], BeforeValidator(_table)] = Field(default_factory=dict)
    tenant: Annotated[dict[str, UsageLimits], BeforeValidator(_table)] = Field(default_factory=dict)


def _always(value: bool) -> bool:  # noqa: FBT001 - pydantic gives it so
    if not value:
        raise ValueError("a background step is a run, and every run is recorded: leave it out, or write true")
    return value


class BackgroundTasks(Section):
    """The options of the runs of background steps.

    `tracking`: they are recorded; it cannot be turned off. `resumability`: they may be resumed and started again. `quota`: each may spend
    `max_cost_usd` and `max_tokens`, and so may each of its retries. `stale_hours` is the time without activity after which one is stale.
    """

    tracking: Annotated[bool, AfterValidator(_always)] = True
    resumability: bool = True
    quota: bool = True
    max_cost_usd: Dollars = 1.0
    max_tokens: Tokens = 10_000
    stale_hours: Annotated[float, Field(gt=0, le=24 * 366)] = 24.0

    def limits(self) -> UsageLimits | None:
        """Return what one may spend; None where the quota is off."""
        if not self.quota:
            return None
        return UsageLimits(total_cost_usd_limit=self.max_cost_usd, total_tokens_limit=self.max_tokens)


class Validation(Section):
    """The severities of the findings of `flujo validate`.

    `profiles` maps a name of yours to weights: `off`, `warn` or `error` by rule, or by a pattern such as `V-T*`. A variable carries JSON.
    `enabled_template_filters` are the filters that blueprints may use in expressions and templates.
    """

    profiles: Annotated[dict[str, dict[str, Literal["off", "warn", "error"]]], BeforeValidator(_table)] = Field(
        default_factory=dict
    )
    enabled_template_filters: Annotated[tuple[TemplateFilter, ...], BeforeValidator(listed)] = get_args(TemplateFilter)


class ModelPrice(Section):
    """The price of a model, in US dollars per 1000 tokens."""

    prompt_tokens_per_1k: Dollars = 0.0
    completion_tokens_per_1k: Dollars = 0.0


class Historical(Section):
    """Which of a pipeline's past attempts determine estimates.

    Attributes:
        runs: the latest runs of a pipeline that are examined.
        attempts: the minimum of attempts at one step with a cost.
        quantile: the share of them that cost no more than is reserved.
        refresh_s: seconds after which a worker process reads it again.
    """

    runs: Count = 50
    attempts: Count = 5
    quantile: Annotated[float, Field(gt=0, le=1)] = 0.9
    refresh_s: Seconds = 60.0


class Cost(Section):
    """Prices of models, and estimates of attempts.

    A variable contains tables as JSON. `providers` maps a provider and a model to prices that override the known ones; `estimators` maps
    names and patterns of models to the reservation of one attempt. `estimation_strategy` "historical" first uses the costs of earlier
    attempts at the same step, by `historical`, then models. `default_output_tokens` are reserved for a model's output if no `max_tokens`
    bounds it and no earlier attempts show its usual length. `strict` rejects a model without a price.
    """

    strict: bool = False
    estimation_strategy: Literal["heuristic", "historical"] = "heuristic"
    historical: Annotated[Historical | None, BeforeValidator(_table)] = None
    default_output_tokens: Count = 1000
    providers: Annotated[dict[str, dict[str, ModelPrice]], BeforeValidator(_table)] = Field(default_factory=dict)
    estimators: Annotated[dict[str, UsageEstimate], BeforeValidator(_table)] = Field(default_factory=dict)


class Health(Section):
    """The schedule, scope and thresholds of the health check.

    `every_s` seconds between two reports, of which the newest `keep` are stored. `window_hours` to `model` are the command's options. The
    others are seconds, and `queue_depth` messages: how long a run may have no work, an attempt be without its worker or wait, the fleet be
    without a sweep; how long a dead worker is reported. At least `failed_runs` of a window, and the part `failure_rate` of those that ended, are
    too many failures; so is a part `failure_rise` times that of the `baseline_hours` before it.
    """

    every_s: Seconds = 300.0
    keep: Count = 2016
    window_hours: Annotated[float, Field(gt=0, le=876_000, allow_inf_nan=False)] = 24.0
    limit: Count | None = None
    trend_buckets: Annotated[int, Field(ge=2, le=1000)] | None = None
    pipeline: str | None = None
    step: str | None = None
    model: str | None = None
    stuck_s: Seconds = 60.0
    orphan_s: Seconds = 30.0
    queued_s: Seconds = 300.0
    sweep_lag_s: Seconds = 30.0
    dead_s: Seconds = 3600.0
    queue_depth: Count = 10_000
    failed_runs: Count = 3
    failure_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.1
    failure_rise: Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)] = 3.0
    baseline_hours: Annotated[float, Field(gt=0, le=876_000, allow_inf_nan=False)] = 168.0


class Log(Section):
    """The options of logs.

    `redact` names fields whose values are hidden everywhere, in addition to those whose names say that they are secret. `prompts` is how
    much of prompts and answers is recorded as events: a preview, all of it, or nothing.
    """

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        BeforeValidator(lambda text: text.upper() if isinstance(text, str) else text),
    ] = "INFO"
    as_json: bool = Field(default=True, alias="json")
    redact: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    prompts: Literal["off", "preview", "full"] = "preview"


class Cassettes(Section):
    """The source of models' answers in tests that use a cassette.

    `mode`: `replay` reads them from its file, `record` calls the models and writes it, `none` calls them and writes nothing.
    """

    mode: Literal["none", "record", "replay"] = "replay"


class HookSettings(Section):
    """The policy for errors in a pipeline's hooks.

    `strict`: an error ends the run, as an abort does. Otherwise it is recorded as an event, and the run continues.
    """

    strict: bool = False


Days = Annotated[int, Field(ge=0, le=36_500)]


def _pipeline_names(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if set(name) & set("*?["):
            raise ValueError(f"`{name}` must be the name of one pipeline; patterns are not supported here")
    return value


class RunRetention(Section):
    """For how many days the ended runs of one pipeline are stored; what is not set is as for all pipelines."""

    succeeded_days: Days | None = None
    failed_days: Days | None = None
    cancelled_days: Days | None = None
    expired_days: Days | None = None


class Retention(Section):
    """Days that ended runs are stored, by their status; 0: forever.

    `pipeline` maps names to other numbers of days. A run is deleted with all its data and all its child runs. `runs_per_minute` is the
    maximum that the fleet deletes. With `keep_summaries`, a row of each run stays until `summary_days` after its end; 0: forever.
    """

    succeeded_days: Days = 0
    failed_days: Days = 0
    cancelled_days: Days = 0
    expired_days: Days = 0
    runs_per_minute: Count = 30_000
    keep_summaries: bool = False
    summary_days: Days = 730
    pipeline: Annotated[dict[str, RunRetention], BeforeValidator(_table), AfterValidator(_pipeline_names)] = Field(
        default_factory=dict
    )


class FairShare(Section):
    """The share of one tenant or pipeline: its turns in comparison with others, and how many of its runs may be under way at once."""

    weight: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    max_running: Count | None = None


class AdmissionSettings(Section):
    """Limits of the runs that are under way at once, if several tenants or pipelines share the workers; the others wait in Postgres.

    `tenant_window` is the number of runs of each tenant; a tenant's weight multiplies it. Unset: any number. `tenant` and `pipeline` map
    names, and patterns such as `free-*`, to shares. A variable contains JSON.
    """

    tenant_window: Count | None = None
    tenant: Annotated[dict[str, FairShare], BeforeValidator(_table)] = Field(default_factory=dict)
    pipeline: Annotated[dict[str, FairShare], BeforeValidator(_table)] = Field(default_factory=dict)


class Events(Section):
    """Events in Postgres. `keep_days` is the number of days that they are stored; 0: forever."""

    keep_days: Days = 90
