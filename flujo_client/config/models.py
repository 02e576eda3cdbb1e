"""The settings' sections: what each key may be, and below it its meaning, as the reference shows it. Reading them is `manager.py`'s work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr

from flujo_client.contract.limits import Dollars, Tokens, UsageEstimate, UsageLimits
from flujo_client.plan.plan import OnChange
from flujo_client.redact import mask_url

MIN_KEY_BYTES = 16
MIN_VALUE_KEY_BYTES = 32


def service_url(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        scheme, separator, rest = url.partition("://")
        if f"{scheme}{separator}" not in schemes or not rest:
            raise ValueError(f"must be a URL that starts with {' or '.join(schemes)}")
        if re.search(r"[\s\x00-\x1f\x7f]", url):
            raise ValueError("must be a URL without spaces or control characters; write a space in a password as %20")
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
_REDIS = ("redis://", "rediss://", SENTINEL)
AMQP = ("amqp://", "amqps://", "pyamqp://")
FIRST = 4
"""RabbitMQ's priority for what goes to the front of a queue: above the four of runs, of which it serves the highest number first."""
Text = TypeVar("Text")


class SecretUrl(pydantic.Secret[Text]):
    """A URL that shows its password only through `get_secret_value()`."""

    def _display(self) -> str:
        return mask_url(str(self.get_secret_value()))


def _for_clients(url: str) -> str:
    """Refuse a port that redis-py and kombu would refuse later, quoting a piece of the password; verify certificates, without which Celery refuses."""
    try:
        _ = [urlsplit(each).port for each in url.split(";")]
    except ValueError:
        what = "must be a URL with a number as its port; in a password write / as %2F, # as %23 and ? as %3F"
        raise ValueError(what) from None
    if not url.startswith("rediss://") or "ssl_cert_reqs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"


def _of_one_server(url: str) -> str:
    """Refuse several servers that are no Sentinels and no nodes of a RabbitMQ: clients and workers could use different ones."""
    if ";" in url and not any(all(each.startswith(kind) for each in url.split(";")) for kind in (SENTINEL, AMQP)):
        sentinels = "`sentinel://one:26379/0;sentinel://other:26379/0` with `sentinel_master`"
        raise ValueError(f"must name one Redis server, or Sentinels as {sentinels}")
    return url


def _of_a_supported_broker(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if separator and f"{scheme}://" not in (*_REDIS, *AMQP):
        raise ValueError(
            f"messages go through Redis or RabbitMQ, not through {scheme}: give Flujo's own workers a broker, "
            "FLUJO_BROKER_URL=redis://… or amqp://…, and run them with `flujo worker`, beside the workers of your app"
        )
    return url


_ONE_SERVER, _FOR_CLIENTS = AfterValidator(_of_one_server), AfterValidator(_for_clients)
_SUPPORTED = AfterValidator(_of_a_supported_broker)
PostgresUrl = SecretUrl[Annotated[str, service_url("postgresql://", "postgres://")]]
RedisUrl = SecretUrl[Annotated[str, _ONE_SERVER, service_url(*_REDIS), _FOR_CLIENTS]]
BrokerUrl = SecretUrl[Annotated[str, _ONE_SERVER, _SUPPORTED, service_url(*_REDIS, *AMQP), _FOR_CLIENTS]]
TemplateFilter = Literal["upper", "lower", "default", "length", "tojson", "join"]
ModulePrefix = Annotated[str, AfterValidator(_module_prefix)]
KeyId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
SigningKeys = Annotated[dict[KeyId, Annotated[SecretStr, _secret(MIN_KEY_BYTES)]], BeforeValidator(_keys)]
ValueKeys = Annotated[dict[KeyId, Annotated[SecretStr, _secret(MIN_VALUE_KEY_BYTES)]], BeforeValidator(_keys)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Hours = Annotated[float, Field(gt=0, le=876_000, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountFromZero = Annotated[int, Field(ge=0)]
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
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Reject values of other types: only a variable's text may be converted, because a file has types."""
        kind = _kind(cls.model_fields[str(info.field_name)].annotation)
        is_other = isinstance(value, (bool, str)) if kind in (int, float) else not isinstance(value, bool)
        if kind is not None and value is not None and is_other and not isinstance(value, Variable):
            raise ValueError(f"must be {_KINDS[kind]}")
        return value


class SizeLimits(Section):
    """Maximum sizes in bytes."""

    snapshot_inline_bytes: CountFromZero = 65_536
    """compressed bytes up to which a value is sent inside the message; above 256 KiB of JSON, uncompressed bytes"""
    snapshot_max_bytes: Count = 16_777_216
    """bytes of JSON above which a value is rejected"""
    message_max_bytes: Count = 16_777_216
    """bytes above which a message is rejected"""
    step_units: Count = 10_000
    """calls on record of a [durable](../how-to/durable-agents.md) step above which it fails"""
    step_units_bytes: Count = 67_108_864
    """bytes of JSON of their results above which it fails"""
    cache_value_max_bytes: Count = 1_048_576
    """bytes, compressed, above which a cached step's result is not stored"""

    @pydantic.model_validator(mode="after")
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
    """A worker process's options. Times in seconds."""

    lease_s: Seconds = 5.5
    """seconds a worker's lease lasts"""
    renew_s: Seconds = 2.0
    """seconds between renewals; at most half of the lease"""
    sweep_s: Seconds = 1.0
    """seconds between two sweeps of the whole fleet"""
    shutdown_grace_s: NotNegative = 75.0
    """seconds that a stopping worker continues its attempts; then other workers [restart them](../how-to/deploy.md#stop-and-restart). The default is 7.5 for workers of `flujo up`, `flujo demo` and `Flujo`"""
    max_lost: Count = 3
    """how often an attempt may kill its process in [quarantine](../how-to/debug-a-stuck-run.md#a-step-in-quarantine); the next time fails it"""
    max_starved: CountFromZero = 5
    """how often an attempt that timed out because its [process was starved](../how-to/deploy.md#a-starved-worker) begins again without using up a retry"""
    max_left_behind: Count = 16
    """calls still running after their timeout and `agents.cancel_grace_s`, at which a process [retires](../how-to/deploy.md#stop-and-restart)"""
    loop_blocked_s: Seconds = 2.0
    """seconds that the event loop may be blocked before the worker stops taking messages until it answers"""
    pool_max: int = Field(4, ge=4)
    """[connections to Postgres](../how-to/size.md#connections) per process; two more while it carries runs under limits"""
    concurrency: Count = 500
    """attempts at once per process, which mostly wait for models; lower it if your steps compute. With `--pool prefork` the number of processes, by default one per core"""
    broker_acks: bool = False
    """use kombu's acknowledgements in Redis, which cost round trips; nothing depends on them"""
    queue_type: Literal["classic", "quorum"] = "classic"
    """the type of the queues in [RabbitMQ](../how-to/use-rabbitmq.md); quorum queues have no priorities"""
    acknowledge_s: Seconds = 600.0
    """with RabbitMQ, seconds after which the message of an attempt that still runs is acknowledged; less than half of the server's `consumer_timeout`"""
    attempts_queue: QueueName = "flujo.attempts"
    """the Celery queue of steps"""
    control_queue: QueueName = "flujo.control"
    """the Celery queue of requested sweeps"""
    heartbeat_file: Path | None = None
    """a file per process, for [probes](../how-to/deploy.md#probes): a worker touches it when it renews its lease, beat when it sends something"""
    build: BuildName | None = None
    """your name for the worker's code, such as a release; `flujo status` shows it for parked runs"""

    @property
    def queue_arguments(self) -> dict[str, Any]:
        """Return the arguments with which Flujo's queues are declared in RabbitMQ. A quorum queue has no priorities."""
        return {"x-queue-type": "quorum"} if self.queue_type == "quorum" else {"x-max-priority": FIRST}

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(f"renew_s ({self.renew_s:g}) must be at most half of lease_s ({self.lease_s:g})")
        if self.attempts_queue == self.control_queue:
            raise ValueError("attempts_queue and control_queue must be different queues")
        return self


class Runs(Section):
    """The options of runs of pipelines that do not set them (ADR 37)."""

    on_change: OnChange = "carry_on"
    """the [policy for changed code](../explanation/changed-code.md#policies) (`carry_on`, `pin` or `park`), unless the pipeline sets it"""


class Retry(Section):
    """The delays before retries, in seconds."""

    base_s: NotNegative = 1.0
    """seconds before the second attempt"""
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """factor by which the wait grows"""
    cap_s: NotNegative = 60.0
    """the longest wait, in seconds"""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1
    """share of the wait, up or down"""

    @pydantic.model_validator(mode="after")
    def _cap_above_base(self) -> Self:
        if self.cap_s < self.base_s:
            raise ValueError(f"cap_s ({self.cap_s:g}) must be at least base_s ({self.base_s:g})")
        return self


class BreakerSettings(Section):
    """The rules by which calls of a model are suspended and resume. Times in seconds."""

    enabled: bool = True
    """[hold back calls](../how-to/handle-a-provider-outage.md) to a model whose provider fails"""
    failures: Count = 5
    """failed calls in a row that open a model's breaker while it has fewer than `least_calls`"""
    window_s: Seconds = 60.0
    """seconds for which a call counts"""
    rate: Share = 0.5
    """share of failed calls that opens it, and of failed probes that opens it again"""
    least_calls: Count = 20
    """calls in the window from which on the share counts"""
    recovery_s: Seconds = 30.0
    """seconds before the model is tried again, unless the provider says when"""
    half_open_calls: Count = 3
    """attempts let through then; their share of failures decides"""
    slow_s: Seconds = 5.0
    """seconds above which a call counts as slow"""
    slow_rate: Share | None = None
    """share of slow calls that opens the breaker; by default none does"""


class ModelRate(Section):
    """The rate limit of a model. `per` names the calls that share a limit: those of each model, or those of each tenant."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    per: Annotated[tuple[Literal["model", "tenant"], ...], BeforeValidator(listed)] = ("model",)


def _table(value: Any) -> Any:
    """Read what a variable carries: JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be JSON, such as {"total_tokens_limit": 1000}') from None


Value = TypeVar("Value")
Table = Annotated[dict[str, Value], BeforeValidator(_table)]


def _model_patterns(value: dict[str, ModelRate]) -> dict[str, ModelRate]:
    for pattern in value:
        provider, separator, model = pattern.partition(":")
        if pattern != "*" and not (provider and separator and model and not re.search(r"\s", pattern)):
            what = "must be `provider:model` or a pattern of it, such as `openai:gpt-4o*`, or `*`"
            raise ValueError(f"`{pattern}` {what}")
    return value


class RateLimitSettings(Section):
    """The rate limits of models, for all workers together."""

    slow_start_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0
    """seconds until a rate-limited model gets its full rate, if nothing is known of it"""
    models: Annotated[Table[ModelRate], AfterValidator(_model_patterns)] = Field(default_factory=dict)
    """[rate limits](../how-to/limit-rates-and-concurrency.md) by model name or pattern: `requests_per_minute`, `tokens_per_minute`, `per`"""


ModelName = Annotated[str, Field(min_length=1)]


class Agents(Section):
    """The defaults of every agent call. Times in seconds."""

    agent_timeout_s: Seconds = 60.0
    """timeout of an agent call, unless the step sets it"""
    function_timeout_s: Seconds = 30.0
    """timeout of a condition, mapper, reducer, merge function or hook"""
    cancel_grace_s: Seconds = 5.0
    """seconds that cancelled code may take to end; then its attempt ends [without it](../how-to/deploy.md#code-that-does-not-end)"""
    default_review_model: ModelName = "openai:gpt-4o"
    """the default model of [`make_review_agent`](agents.md#recipes)"""
    default_solution_model: ModelName = "openai:gpt-4o"
    """of `make_solution_agent`"""
    default_validator_model: ModelName = "openai:gpt-4o"
    """of `make_validator_agent`"""
    default_reflection_model: ModelName = "openai:gpt-4o"
    """of `make_reflection_agent`"""
    default_self_improvement_model: ModelName = "openai:gpt-4o"
    """of `make_self_improvement_agent`"""
    default_repair_model: ModelName = "openai:gpt-4o"
    """of `make_repair_agent`"""


class TemplateSettings(Section):
    """The options for rendering prompts from templates."""

    undefined_variables: Literal["warn", "strict", "ignore"] = "warn"
    """an undefined variable in a prompt's [template](agents.md#templates): `warn` (empty, and a `template.undefined` event), `ignore` (empty) or `strict` (a `TemplateError`); likewise a name in a [blueprint's template](templates.md#missing-values) (a `template.missing` event, a `TemplateResolutionError`)"""
    log_resolution: bool = False
    """report each rendered template as `template.resolved`, without values"""
    folders: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    """folders searched for templates before Flujo's own, relative to the worker's working directory"""
    max_chars: Count = 1_000_000
    """characters of a rendered prompt"""
    max_s: Seconds = 10.0
    """seconds to render it"""


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


class Aros(Section):
    """The settings of AROS that a step's `processing` block leaves out. Without this section, steps without a block are left alone."""

    enabled: bool = True
    """`false` turns AROS off for every step"""
    structured_output_default: Annotated[Literal["off", "auto", "openai_json"], BeforeValidator(_lower)] = "auto"
    """`structured_output`: `off`, `auto` or `openai_json`, unless the step sets it, as below"""
    enable_aop_default: Literal["off", "minimal", "full"] = "minimal"
    """`aop`: `off`, `minimal` or `full`"""
    coercion_tolerant_level: Annotated[int, Field(ge=0, le=2)] = 0
    """[`coercion.tolerant_level`](aros.md#the-processing-options)"""
    max_unescape_depth: CountFromZero = 2
    """`coercion.max_unescape_depth`"""
    anyof_strategy: Literal["first-pass"] = "first-pass"
    """`coercion.anyof_strategy`"""
    max_characters: Count = 16_000_000
    """`coercion.max_characters`"""
    max_steps: Count = 250_000
    """`coercion.max_steps`"""
    max_ms_per_mb: Annotated[float, Field(ge=0)] = 50.0
    """`coercion.max_ms_per_mb`"""
    enable_reasoning_precheck: bool = False
    """`reasoning_precheck.enabled`"""
    correction_ledger_enabled: bool = False
    """store each repair in the [correction ledger](aros.md#the-correction-ledger)"""
    strict_schema: bool = False
    """[`strict_schema`](aros.md#the-type-decides)"""
    shadow_mode: bool = False
    """[`shadow`](aros.md#shadow-mode)"""

    def table(self) -> dict[str, Any] | None:
        """Return the section as plain data; None where it is not written."""
        return self.model_dump() if self.model_fields_set else None


class Budgets(Section):
    """The usage limits of runs, unless their code sets lower ones. A variable contains JSON."""

    default: Annotated[UsageLimits | None, BeforeValidator(_table)] = None
    """what a run may [spend](../how-to/set-budgets.md): `total_cost_usd_limit`, `total_tokens_limit`"""
    pipeline: Table[UsageLimits] = Field(default_factory=dict)
    """the same by pipeline, instead: the exact name, else the first matching pattern"""
    tenant: Table[UsageLimits] = Field(default_factory=dict)
    """what all runs of a tenant may spend in one day (UTC), by its name or a pattern"""


def _always(value: bool) -> bool:  # noqa: FBT001 - pydantic gives it so
    if not value:
        raise ValueError("a background step is a run, and every run is recorded: leave it out, or write true")
    return value


class BackgroundTasks(Section):
    """The options of the runs of background steps."""

    tracking: Annotated[bool, AfterValidator(_always)] = True
    """always `true`: background steps are recorded runs"""
    resumability: bool = True
    """allow background runs to be resumed and retried"""
    quota: bool = True
    """limit each to the next two settings"""
    max_cost_usd: Dollars = 1.0
    """US dollars of each background run, and of each retry"""
    max_tokens: Tokens = 10_000
    """tokens, likewise"""
    stale_hours: Annotated[float, Field(gt=0, le=24 * 366)] = 24.0
    """hours without activity after which a cleanup fails one"""

    def limits(self) -> UsageLimits | None:
        """Return what one may spend; None where the quota is off."""
        if not self.quota:
            return None
        return UsageLimits(total_cost_usd_limit=self.max_cost_usd, total_tokens_limit=self.max_tokens)


class Validation(Section):
    """The profiles of `flujo validate`, and the filters that blueprints may use. A variable contains JSON."""

    profiles: Table[dict[str, Literal["off", "warn", "error"]]] = Field(default_factory=dict)
    """[profiles](validation.md#profiles) of `flujo validate`, by name: `off`, `warn` or `error` by rule, or by a pattern such as `V-T*`"""
    enabled_template_filters: Annotated[tuple[TemplateFilter, ...], BeforeValidator(listed)] = get_args(TemplateFilter)
    """the [filters](expressions.md#filters) that blueprints may use"""


class ModelPrice(Section):
    """The price of a model, in US dollars per 1000 tokens."""

    prompt_tokens_per_1k: Dollars = 0.0
    completion_tokens_per_1k: Dollars = 0.0


class Historical(Section):
    """Which of a pipeline's past attempts determine estimates; `Cost.historical` describes its keys."""

    runs: Count = 50
    attempts: Count = 5
    quantile: Share = 0.9
    refresh_s: Seconds = 60.0


class Cost(Section):
    """Prices of models, and estimates of attempts. A variable contains tables as JSON."""

    strict: bool = False
    """reject a model that has no price"""
    estimation_strategy: Literal["heuristic", "historical"] = "heuristic"
    """what an attempt reserves: `historical`, by earlier attempts at the same step; else by its model's price"""
    historical: Annotated[Historical | None, BeforeValidator(_table)] = None
    """which earlier attempts count for that, and for the length of outputs: the latest `runs` (50), the `attempts` required (5), the `quantile` of their costs (0.9), `refresh_s` between readings (60)"""
    default_output_tokens: Count = 1000
    """what an attempt reserves for its output without `max_tokens` and earlier attempts"""
    providers: Table[dict[str, ModelPrice]] = Field(default_factory=dict)
    """prices by provider and model, before the known ones: `prompt_tokens_per_1k`, `completion_tokens_per_1k` in US dollars"""
    estimators: Table[UsageEstimate] = Field(default_factory=dict)
    """what an attempt reserves, by model name or pattern: `cost_usd`, `tokens`"""


class Health(Section):
    """The schedule, scope and thresholds of the health check."""

    every_s: Seconds = 300.0
    """seconds between scheduled [health checks](health-check.md)"""
    keep: Count = 2016
    """stored reports, by default a week's"""
    window_hours: Hours = 24.0
    """the scheduled check's window: runs that began or ended in these last hours"""
    limit: Count | None = None
    """only this many of the newest runs"""
    trend_buckets: Annotated[int, Field(ge=2, le=1000)] | None = None
    """parts of the window, 2 or more, in addition to its halves"""
    pipeline: str | None = None
    """only runs of this pipeline"""
    step: str | None = None
    """only this step"""
    model: str | None = None
    """only this model"""
    stuck_s: Seconds = 60.0
    """seconds a run may have nothing to do, or ignore a cancel, before it is reported as stuck"""
    orphan_s: Seconds = 30.0
    """seconds after a worker's lease at which it is reported as dead, its attempts as orphans"""
    queued_s: Seconds = 300.0
    """seconds a due attempt or hook may wait"""
    sweep_lag_s: Seconds = 30.0
    """seconds live workers may be without a sweep"""
    dead_s: Seconds = 3600.0
    """seconds for which a dead worker is reported"""
    queue_depth: Count = 10_000
    """messages from which a queue is reported as long"""
    failed_runs: Count = 3
    """failed runs of a window below which no failure rate is reported"""
    failure_rate: Share = 0.1
    """the part of the runs of a window, or of a pipeline in it, that may not fail"""
    failure_rise: Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)] = 3.0
    """how many times the failure rate before the window is reported as a rise"""
    baseline_hours: Hours = 168.0
    """the hours before the window that it is compared with"""


class Log(Section):
    """The options of logs."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        BeforeValidator(lambda text: text.upper() if isinstance(text, str) else text),
    ] = "INFO"
    """DEBUG, INFO, WARNING, ERROR or CRITICAL"""
    as_json: bool = Field(True, alias="json")
    """log lines as JSON, else as text"""
    redact: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    """fields to hide in log lines and events, in addition to names that indicate a secret"""
    prompts: Literal["off", "preview", "full"] = "preview"
    """how much of prompts and answers to [log](events.md#prompts): off, preview (200 characters of each text) or full (65 536, for debugging)"""
    answers: bool = True
    """store the answer that AROS [refused](errors.md#details) with its failed attempt, without secrets"""


class Metrics(Section):
    """The metrics for Prometheus."""

    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """serve a worker process's [metrics](../how-to/metrics.md) on this port; 0 for none. With prefork the main process serves those of its children"""
    host: str = "127.0.0.1"
    """the address of this port; `0.0.0.0` for Prometheus on another machine"""
    tenants: bool = False
    """serve the budgets of tenants, with a series for each of the fullest 200"""


class Traces(Section):
    """What is exported as traces, where the variables of OpenTelemetry name a collector."""

    content: bool = False
    """send prompts and answers with [traces](../how-to/traces.md), as `log.prompts` shows them"""
    calls: Literal["rows", "live"] = "rows"
    """the spans of model and tool calls: `rows` sends those on record; `live` none, because your own instrumentation of pydantic-ai does"""
    wait_days: Annotated[float, Field(ge=0, le=366)] = 7.0
    """days that runs whose retention is over wait until they are exported; then they are deleted, and counted as `lost` in `flujo_exports`"""


class Cassettes(Section):
    """The source of models' answers in tests that use a cassette."""

    mode: Literal["none", "record", "replay"] = "replay"
    """in tests with a [cassette](testing.md#cassettes): `replay` answers from its file, `record` calls the models and writes it, `none` only calls them. Production accepts only the default"""


class HookSettings(Section):
    """The policy for errors in a pipeline's hooks."""

    strict: bool = False
    """any error in a [hook](pipelines.md#hooks) ends its run, not only an abort"""


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
    """Days that ended runs are stored, by their status. A run is deleted with all its data and all its child runs."""

    succeeded_days: Days = 0
    """days to [store](../how-to/deploy.md#what-grows) succeeded runs after their end; 0: forever"""
    failed_days: Days = 0
    """the same for failed runs"""
    cancelled_days: Days = 0
    """the same for cancelled runs"""
    expired_days: Days = 0
    """the same for expired runs"""
    units_days: Days = 0
    """days to keep the calls of [durable](../how-to/durable-agents.md) steps after their end; 0: a minute"""
    runs_per_minute: Count = 30_000
    """how many runs all workers together delete at most"""
    keep_summaries: bool = False
    """keep a [summary](../how-to/deploy.md#what-grows) of each deleted run"""
    summary_days: Days = 730
    """days to store summaries after the run's end; 0: forever"""
    pipeline: Annotated[Table[RunRetention], AfterValidator(_pipeline_names)] = Field(default_factory=dict)
    """`succeeded_days` to `expired_days` by pipeline name; missing keys are as for all pipelines"""


class FairShare(Section):
    """The share of one tenant or pipeline: its turns in comparison with others, and how many of its runs may be under way at once."""

    weight: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    max_running: Count | None = None


class AdmissionSettings(Section):
    """Limits of the runs that are under way at once, if several tenants or pipelines share the workers; the others wait in Postgres."""

    tenant_window: Count | None = None
    """how many runs of each tenant may be [under way at once](../how-to/concurrency-limits-and-fair-queues.md#share-workers-between-tenants), multiplied by its weight; by default any number"""
    tenant: Table[FairShare] = Field(default_factory=dict)
    """by tenant name or pattern: `weight` (1), its turns relative to others; `max_running`, instead of the window"""
    pipeline: Table[FairShare] = Field(default_factory=dict)
    """by pipeline name or pattern: `weight` (1) in its tenant's window; `max_running`, its runs under way at once"""


class Streams(Section):
    """Streams of runs in Redis."""

    max_entries: Count = 10_000
    """about how many entries the stream of a run keeps; readers get a `gap` for those that they missed"""
    expire_s: Seconds = 3600.0
    """seconds after its last entry that a stream is deleted"""


class Ui(Section):
    """The page."""

    secret: SecretStr | None = Field(None, min_length=MIN_VALUE_KEY_BYTES)
    """a secret of at least 32 characters that all processes of [the page](../how-to/use-the-page.md) share, for its forms; by default each process generates its own"""
    values: bool = True
    """show prompts, inputs, outputs and questions on the page"""


class Events(Section):
    """Events in Postgres."""

    keep_days: Days = 90
    """days to store events; 0: forever"""
