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
_REDIS = ("redis://", "rediss://", SENTINEL)
AMQP = ("amqp://", "amqps://", "pyamqp://")
FIRST = 4
"""RabbitMQ's priority for what goes to the front of a queue: above the four of runs, of which it serves the highest number first."""
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
    """Refuse several servers that are no Sentinels and no nodes of a RabbitMQ: clients and workers could use different ones."""
    if ";" in url and not any(all(each.startswith(kind) for each in url.split(";")) for kind in (SENTINEL, AMQP)):
        raise ValueError(
            "must name one Redis server, or Sentinels as `sentinel://one:26379/0;sentinel://other:26379/0` "
            "with `sentinel_master`"
        )
    return url


def _of_a_supported_broker(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if separator and f"{scheme}://" not in (*_REDIS, *AMQP):
        raise ValueError(
            f"messages go through Redis or RabbitMQ, not through {scheme}: give Flujo's own workers a broker, "
            "FLUJO_BROKER_URL=redis://… or amqp://…, and run them with `flujo worker`, beside the workers of your app"
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
BrokerUrl = SecretUrl[
    Annotated[
        str,
        AfterValidator(_of_one_server),
        AfterValidator(_of_a_supported_broker),
        service_url("redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp"),
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
    """Maximum sizes in bytes."""

    snapshot_inline_bytes: CountFromZero = Field(
        65_536,
        description="compressed bytes up to which a value is sent inside the message; above 256 KiB of JSON, uncompressed bytes",
    )
    snapshot_max_bytes: Count = Field(16_777_216, description="bytes of JSON above which a value is rejected")
    message_max_bytes: Count = Field(16_777_216, description="bytes above which a message is rejected")
    step_units: Count = Field(
        10_000, description="calls on record of a [durable](../how-to/durable-agents.md) step above which it fails"
    )
    step_units_bytes: Count = Field(67_108_864, description="bytes of JSON of their results above which it fails")
    cache_value_max_bytes: Count = Field(
        1_048_576, description="bytes, compressed, above which a cached step's result is not stored"
    )

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
    """A worker process's options. Times in seconds."""

    lease_s: Seconds = Field(5.5, description="seconds a worker's lease lasts")
    renew_s: Seconds = Field(2.0, description="seconds between renewals; at most half of the lease")
    sweep_s: Seconds = Field(1.0, description="seconds between two sweeps of the whole fleet")
    shutdown_grace_s: NotNegative = Field(
        75.0,
        description="seconds that a stopping worker continues its attempts; then other workers [restart them](../how-to/deploy.md#stop-and-restart). The default is 7.5 for workers of `flujo up`, `flujo demo` and `Flujo`",
    )
    max_lost: Count = Field(
        3,
        description="how often an attempt may kill its process in [quarantine](../how-to/debug-a-stuck-run.md#a-step-in-quarantine); the next time fails it",
    )
    max_starved: CountFromZero = Field(
        5,
        description="how often an attempt that timed out because its [process was starved](../how-to/deploy.md#a-starved-worker) begins again without using up a retry",
    )
    max_left_behind: Count = Field(
        16,
        description="calls still running after their timeout and `agents.cancel_grace_s`, at which a process [retires](../how-to/deploy.md#stop-and-restart)",
    )
    loop_blocked_s: Seconds = Field(
        2.0,
        description="seconds that the event loop may be blocked before the worker stops taking messages until it answers",
    )
    pool_max: int = Field(
        4,
        ge=4,
        description="[connections to Postgres](../how-to/size.md#connections) per process; two more while it carries runs under limits",
    )
    concurrency: Count = Field(
        500,
        description="attempts at once per process, which mostly wait for models; lower it if your steps compute. With `--pool prefork` the number of processes, by default one per core",
    )
    broker_acks: bool = Field(
        False, description="use kombu's acknowledgements in Redis, which cost round trips; nothing depends on them"
    )
    queue_type: Literal["classic", "quorum"] = Field(
        "classic",
        description="the type of the queues in [RabbitMQ](../how-to/use-rabbitmq.md); quorum queues have no priorities",
    )
    acknowledge_s: Seconds = Field(
        600.0,
        description="with RabbitMQ, seconds after which the message of an attempt that still runs is acknowledged; less than half of the server's `consumer_timeout`",
    )
    attempts_queue: QueueName = Field("flujo.attempts", description="the Celery queue of steps")
    control_queue: QueueName = Field("flujo.control", description="the Celery queue of requested sweeps")
    heartbeat_file: Path | None = Field(
        None,
        description="a file per process, for [probes](../how-to/deploy.md#probes): a worker touches it when it renews its lease, beat when it sends something",
    )
    build: BuildName | None = Field(
        None, description="your name for the worker's code, such as a release; `flujo status` shows it for parked runs"
    )

    @property
    def queue_arguments(self) -> dict[str, Any]:
        """Return the arguments with which Flujo's queues are declared in RabbitMQ. A quorum queue has no priorities."""
        return {"x-queue-type": "quorum"} if self.queue_type == "quorum" else {"x-max-priority": FIRST}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(f"renew_s ({self.renew_s:g}) must be at most half of lease_s ({self.lease_s:g})")
        if self.attempts_queue == self.control_queue:
            raise ValueError("attempts_queue and control_queue must be different queues")
        return self


class Runs(Section):
    """The options of runs of pipelines that do not set them (ADR 37)."""

    on_change: OnChange = Field(
        "carry_on",
        description="the [policy for changed code](../explanation/changed-code.md#policies) (`carry_on`, `pin` or `park`), unless the pipeline sets it",
    )


class Retry(Section):
    """The delays before retries, in seconds."""

    base_s: NotNegative = Field(1.0, description="seconds before the second attempt")
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        2.0, description="factor by which the wait grows"
    )
    cap_s: NotNegative = Field(60.0, description="the longest wait, in seconds")
    jitter: Annotated[float, Field(ge=0, le=1)] = Field(0.1, description="share of the wait, up or down")

    @model_validator(mode="after")
    def _cap_above_base(self) -> Self:
        if self.cap_s < self.base_s:
            raise ValueError(f"cap_s ({self.cap_s:g}) must be at least base_s ({self.base_s:g})")
        return self


class BreakerSettings(Section):
    """The rules by which calls of a model are suspended and resume. Times in seconds."""

    enabled: bool = Field(
        True, description="[hold back calls](../how-to/handle-a-provider-outage.md) to a model whose provider fails"
    )
    failures: Count = Field(
        5, description="failed calls in a row that open a model's breaker while it has fewer than `least_calls`"
    )
    window_s: Seconds = Field(60.0, description="seconds for which a call counts")
    rate: Share = Field(
        0.5, description="share of failed calls that opens it, and of failed probes that opens it again"
    )
    least_calls: Count = Field(20, description="calls in the window from which on the share counts")
    recovery_s: Seconds = Field(
        30.0, description="seconds before the model is tried again, unless the provider says when"
    )
    half_open_calls: Count = Field(3, description="attempts let through then; their share of failures decides")
    slow_s: Seconds = Field(5.0, description="seconds above which a call counts as slow")
    slow_rate: Share | None = Field(
        None, description="share of slow calls that opens the breaker; by default none does"
    )


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
            raise ValueError(
                f"`{pattern}` must be `provider:model` or a pattern of it, such as `openai:gpt-4o*`, or `*`"
            )
    return value


class RateLimitSettings(Section):
    """The rate limits of models, for all workers together."""

    slow_start_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        30.0, description="seconds until a rate-limited model gets its full rate, if nothing is known of it"
    )
    models: Annotated[Table[ModelRate], AfterValidator(_model_patterns)] = Field(
        default_factory=dict,
        description="[rate limits](../how-to/limit-rates-and-concurrency.md) by model name or pattern: `requests_per_minute`, `tokens_per_minute`, `per`",
    )


ModelName = Annotated[str, Field(min_length=1)]


class Agents(Section):
    """The defaults of every agent call. Times in seconds."""

    agent_timeout_s: Seconds = Field(60.0, description="timeout of an agent call, unless the step sets it")
    function_timeout_s: Seconds = Field(
        30.0, description="timeout of a condition, mapper, reducer, merge function or hook"
    )
    cancel_grace_s: Seconds = Field(
        5.0,
        description="seconds that cancelled code may take to end; then its attempt ends [without it](../how-to/deploy.md#code-that-does-not-end)",
    )
    default_review_model: ModelName = Field(
        "openai:gpt-4o", description="the default model of [`make_review_agent`](agents.md#recipes)"
    )
    default_solution_model: ModelName = Field("openai:gpt-4o", description="of `make_solution_agent`")
    default_validator_model: ModelName = Field("openai:gpt-4o", description="of `make_validator_agent`")
    default_reflection_model: ModelName = Field("openai:gpt-4o", description="of `make_reflection_agent`")
    default_self_improvement_model: ModelName = Field("openai:gpt-4o", description="of `make_self_improvement_agent`")
    default_repair_model: ModelName = Field("openai:gpt-4o", description="of `make_repair_agent`")


class TemplateSettings(Section):
    """The options for rendering prompts from templates."""

    undefined_variables: Literal["warn", "strict", "ignore"] = Field(
        "warn",
        description="an undefined variable in a prompt's [template](agents.md#templates): `warn` (empty, and a `template.undefined` event), `ignore` (empty) or `strict` (a `TemplateError`); likewise a name in a [blueprint's template](templates.md#missing-values) (a `template.missing` event, a `TemplateResolutionError`)",
    )
    log_resolution: bool = Field(
        False, description="report each rendered template as `template.resolved`, without values"
    )
    folders: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        (), description="folders searched for templates before Flujo's own, relative to the worker's working directory"
    )
    max_chars: Count = Field(1_000_000, description="characters of a rendered prompt")
    max_s: Seconds = Field(10.0, description="seconds to render it")


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


class Aros(Section):
    """What AROS does by default, where a step's `processing` block does not set it.

    The section counts only where it is written: a project without one, and a step without a block, are left alone.
    """

    enabled: bool = Field(True, description="`false` turns AROS off for every step")
    structured_output_default: Annotated[Literal["off", "auto", "openai_json"], BeforeValidator(_lower)] = Field(
        "auto", description="`structured_output`: `off`, `auto` or `openai_json`, unless the step sets it, as below"
    )
    enable_aop_default: Literal["off", "minimal", "full"] = Field(
        "minimal", description="`aop`: `off`, `minimal` or `full`"
    )
    coercion_tolerant_level: Annotated[int, Field(ge=0, le=2)] = Field(
        0, description="[`coercion.tolerant_level`](aros.md#the-processing-options)"
    )
    max_unescape_depth: CountFromZero = Field(2, description="`coercion.max_unescape_depth`")
    anyof_strategy: Literal["first-pass"] = Field("first-pass", description="`coercion.anyof_strategy`")
    max_characters: Count = Field(16_000_000, description="`coercion.max_characters`")
    max_steps: Count = Field(250_000, description="`coercion.max_steps`")
    max_ms_per_mb: Annotated[float, Field(ge=0)] = Field(50.0, description="`coercion.max_ms_per_mb`")
    enable_reasoning_precheck: bool = Field(False, description="`reasoning_precheck.enabled`")
    correction_ledger_enabled: bool = Field(
        False, description="store each repair in the [correction ledger](aros.md#the-correction-ledger)"
    )
    strict_schema: bool = Field(False, description="[`strict_schema`](aros.md#the-type-decides)")
    shadow_mode: bool = Field(False, description="[`shadow`](aros.md#shadow-mode)")

    def table(self) -> dict[str, Any] | None:
        """Return the section as plain data; None where it is not written."""
        return self.model_dump() if self.model_fields_set else None


class Budgets(Section):
    """The usage limits of runs, unless their code sets lower ones. A variable contains JSON."""

    default: Annotated[UsageLimits | None, BeforeValidator(_table)] = Field(
        None,
        description="what a run may [spend](../how-to/set-budgets.md): `total_cost_usd_limit`, `total_tokens_limit`",
    )
    pipeline: Table[UsageLimits] = Field(
        default_factory=dict,
        description="the same by pipeline, instead: the exact name, else the first matching pattern",
    )
    tenant: Table[UsageLimits] = Field(
        default_factory=dict,
        description="what all runs of a tenant may spend in one day (UTC), by its name or a pattern",
    )


def _always(value: bool) -> bool:  # noqa: FBT001 - pydantic gives it so
    if not value:
        raise ValueError("a background step is a run, and every run is recorded: leave it out, or write true")
    return value


class BackgroundTasks(Section):
    """The options of the runs of background steps."""

    tracking: Annotated[bool, AfterValidator(_always)] = Field(
        True, description="always `true`: background steps are recorded runs"
    )
    resumability: bool = Field(True, description="allow background runs to be resumed and retried")
    quota: bool = Field(True, description="limit each to the next two settings")
    max_cost_usd: Dollars = Field(1.0, description="US dollars of each background run, and of each retry")
    max_tokens: Tokens = Field(10_000, description="tokens, likewise")
    stale_hours: Annotated[float, Field(gt=0, le=24 * 366)] = Field(
        24.0, description="hours without activity after which a cleanup fails one"
    )

    def limits(self) -> UsageLimits | None:
        """Return what one may spend; None where the quota is off."""
        if not self.quota:
            return None
        return UsageLimits(total_cost_usd_limit=self.max_cost_usd, total_tokens_limit=self.max_tokens)


class Validation(Section):
    """The profiles of `flujo validate`, and the filters that blueprints may use. A variable contains JSON."""

    profiles: Table[dict[str, Literal["off", "warn", "error"]]] = Field(
        default_factory=dict,
        description="[profiles](validation.md#profiles) of `flujo validate`, by name: `off`, `warn` or `error` by rule, or by a pattern such as `V-T*`",
    )
    enabled_template_filters: Annotated[tuple[TemplateFilter, ...], BeforeValidator(listed)] = Field(
        get_args(TemplateFilter), description="the [filters](expressions.md#filters) that blueprints may use"
    )


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
    quantile: Share = 0.9
    refresh_s: Seconds = 60.0


class Cost(Section):
    """Prices of models, and estimates of attempts. A variable contains tables as JSON."""

    strict: bool = Field(False, description="reject a model that has no price")
    estimation_strategy: Literal["heuristic", "historical"] = Field(
        "heuristic",
        description="what an attempt reserves: `historical`, by earlier attempts at the same step; else by its model's price",
    )
    historical: Annotated[Historical | None, BeforeValidator(_table)] = Field(
        None,
        description="which earlier attempts count for that, and for the length of outputs: the latest `runs` (50), the `attempts` required (5), the `quantile` of their costs (0.9), `refresh_s` between readings (60)",
    )
    default_output_tokens: Count = Field(
        1000, description="what an attempt reserves for its output without `max_tokens` and earlier attempts"
    )
    providers: Table[dict[str, ModelPrice]] = Field(
        default_factory=dict,
        description="prices by provider and model, before the known ones: `prompt_tokens_per_1k`, `completion_tokens_per_1k` in US dollars",
    )
    estimators: Table[UsageEstimate] = Field(
        default_factory=dict, description="what an attempt reserves, by model name or pattern: `cost_usd`, `tokens`"
    )


class Health(Section):
    """The schedule, scope and thresholds of the health check."""

    every_s: Seconds = Field(300.0, description="seconds between scheduled [health checks](health-check.md)")
    keep: Count = Field(2016, description="stored reports, by default a week's")
    window_hours: Hours = Field(
        24.0, description="the scheduled check's window: runs that began or ended in these last hours"
    )
    limit: Count | None = Field(None, description="only this many of the newest runs")
    trend_buckets: Annotated[int, Field(ge=2, le=1000)] | None = Field(
        None, description="parts of the window, 2 or more, in addition to its halves"
    )
    pipeline: str | None = Field(None, description="only runs of this pipeline")
    step: str | None = Field(None, description="only this step")
    model: str | None = Field(None, description="only this model")
    stuck_s: Seconds = Field(
        60.0, description="seconds a run may have nothing to do, or ignore a cancel, before it is reported as stuck"
    )
    orphan_s: Seconds = Field(
        30.0, description="seconds after a worker's lease at which it is reported as dead, its attempts as orphans"
    )
    queued_s: Seconds = Field(300.0, description="seconds a due attempt or hook may wait")
    sweep_lag_s: Seconds = Field(30.0, description="seconds live workers may be without a sweep")
    dead_s: Seconds = Field(3600.0, description="seconds for which a dead worker is reported")
    queue_depth: Count = Field(10_000, description="messages from which a queue is reported as long")
    failed_runs: Count = Field(3, description="failed runs of a window below which no failure rate is reported")
    failure_rate: Share = Field(
        0.1, description="the part of the runs of a window, or of a pipeline in it, that may not fail"
    )
    failure_rise: Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)] = Field(
        3.0, description="how many times the failure rate before the window is reported as a rise"
    )
    baseline_hours: Hours = Field(168.0, description="the hours before the window that it is compared with")


class Log(Section):
    """The options of logs."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        BeforeValidator(lambda text: text.upper() if isinstance(text, str) else text),
    ] = Field("INFO", description="DEBUG, INFO, WARNING, ERROR or CRITICAL")
    as_json: bool = Field(default=True, alias="json", description="log lines as JSON, else as text")
    redact: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        (), description="fields to hide in log lines and events, in addition to names that indicate a secret"
    )
    prompts: Literal["off", "preview", "full"] = Field(
        "preview",
        description="how much of prompts and answers to [log](events.md#prompts): off, preview (200 characters of each text) or full (65 536, for debugging)",
    )
    answers: bool = Field(
        True,
        description="store the answer that AROS [refused](errors.md#details) with its failed attempt, without secrets",
    )


class Metrics(Section):
    """The metrics for Prometheus."""

    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        0,
        description="serve a worker process's [metrics](../how-to/metrics.md) on this port; 0 for none. With prefork the main process serves those of its children",
    )
    host: str = Field("127.0.0.1", description="the address of this port; `0.0.0.0` for Prometheus on another machine")
    tenants: bool = Field(False, description="serve the budgets of tenants, with a series for each of the fullest 200")


class Traces(Section):
    """What is exported as traces, where the variables of OpenTelemetry name a collector."""

    content: bool = Field(
        False,
        description="send prompts and answers with [traces](../how-to/traces.md), as `log.prompts` shows them",
    )
    calls: Literal["rows", "live"] = Field(
        "rows",
        description="the spans of model and tool calls: `rows` sends those on record; `live` none, because your own instrumentation of pydantic-ai does",
    )
    wait_days: Annotated[float, Field(ge=0, le=366)] = Field(
        7.0,
        description="days that runs whose retention is over wait until they are exported; then they are deleted, and counted as `lost` in `flujo_exports`",
    )


class Cassettes(Section):
    """The source of models' answers in tests that use a cassette."""

    mode: Literal["none", "record", "replay"] = Field(
        "replay",
        description="in tests with a [cassette](testing.md#cassettes): `replay` answers from its file, `record` asks the models and writes it, `none` only asks them. Production accepts only the default",
    )


class HookSettings(Section):
    """The policy for errors in a pipeline's hooks."""

    strict: bool = Field(False, description="any error in a [hook](pipelines.md#hooks) ends its run, not only an abort")


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

    succeeded_days: Days = Field(
        0, description="days to [store](../how-to/deploy.md#what-grows) succeeded runs after their end; 0: for ever"
    )
    failed_days: Days = Field(0, description="the same for failed runs")
    cancelled_days: Days = Field(0, description="the same for cancelled runs")
    expired_days: Days = Field(0, description="the same for expired runs")
    units_days: Days = Field(
        0,
        description="days to keep the calls of [durable](../how-to/durable-agents.md) steps after their end; 0: a minute",
    )
    runs_per_minute: Count = Field(30_000, description="how many runs all workers together delete at most")
    keep_summaries: bool = Field(
        False, description="keep a [summary](../how-to/deploy.md#what-grows) of each deleted run"
    )
    summary_days: Days = Field(730, description="days to store summaries after the run's end; 0: for ever")
    pipeline: Annotated[Table[RunRetention], AfterValidator(_pipeline_names)] = Field(
        default_factory=dict,
        description="`succeeded_days` to `expired_days` by pipeline name; missing keys are as for all pipelines",
    )


class FairShare(Section):
    """The share of one tenant or pipeline: its turns in comparison with others, and how many of its runs may be under way at once."""

    weight: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    max_running: Count | None = None


class AdmissionSettings(Section):
    """Limits of the runs that are under way at once, if several tenants or pipelines share the workers; the others wait in Postgres."""

    tenant_window: Count | None = Field(
        None,
        description="how many runs of each tenant may be [under way at once](../how-to/concurrency-limits-and-fair-queues.md#share-workers-between-tenants), multiplied by its weight; by default any number",
    )
    tenant: Table[FairShare] = Field(
        default_factory=dict,
        description="by tenant name or pattern: `weight` (1), its turns relative to others; `max_running`, instead of the window",
    )
    pipeline: Table[FairShare] = Field(
        default_factory=dict,
        description="by pipeline name or pattern: `weight` (1) in its tenant's window; `max_running`, its runs under way at once",
    )


class Streams(Section):
    """Streams of runs in Redis."""

    max_entries: Count = Field(
        10_000, description="about how many entries the stream of a run keeps; readers learn which they have missed"
    )
    expire_s: Seconds = Field(3600.0, description="seconds after its last entry that a stream is deleted")


class Ui(Section):
    """The page."""

    secret: SecretStr | None = Field(
        None,
        min_length=MIN_VALUE_KEY_BYTES,
        description="a secret of at least 32 characters that all processes of [the page](../how-to/use-the-page.md) share, for its forms; by default each process draws its own",
    )
    values: bool = Field(True, description="show prompts, inputs, outputs and questions on the page")


class Events(Section):
    """Events in Postgres."""

    keep_days: Days = Field(90, description="days to store events; 0: for ever")
