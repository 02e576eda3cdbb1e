"""The keys of a document, of its agents, and of several kinds of step; a kind's own keys are in its module of `kinds`.

Reading, errors and documents are made of these tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, get_args

from flujo_client.blueprint.finding import nearest
from flujo_client.blueprint.kind import BODY
from flujo_client.blueprint.shapes import (
    ANY,
    COUNT,
    FLAG,
    NULL,
    TEXT,
    AnyOf,
    DocumentLocation,
    Key,
    ListOf,
    MapOf,
    Number,
    OfText,
    OneOf,
    Table,
)
from flujo_client.blueprint.value_types import (
    EXPRESSION,
    LIMIT_NAME,
    RUN_LIMIT_KEY,
    TEMPLATE,
    JsonSchema,
    Model,
    Named,
    OneOfOr,
    Processing,
    Reference,
    is_function,
)
from flujo_client.contract.admission import LimitScope, OnFull
from flujo_client.contract.code import ON_BODY_CHANGE
from flujo_client.contract.limits import AttemptScope
from flujo_client.contract.providers import PROVIDERS
from flujo_client.contract.schedules import CATCH_UPS, OVERLAPS
from flujo_client.contract.validation import Finding
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.agents import is_made_here
from flujo_client.pipeline.hooks import HOOK
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import RESOURCES, is_file, is_reference
from flujo_client.pipeline.schedule import Schedule
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.plan import ON_CHANGE
from flujo_client.recipes.agentic_loop import registry_findings


def _agent(found: Any) -> str | None:
    if inspect.isclass(found):
        return "is a class; name an instance of it"
    fits = isinstance(found, str) or callable(found) or callable(getattr(found, "run", None))
    return None if fits else f"is a {type(found).__name__}; expected a callable or an object with a run method"


def _tool(found: Any) -> str | None:
    """Return what is wrong with what a tool's reference names: a function, an agent that is offered as a tool, or the agent library's own tool."""
    tools = (each for each in type(found).__mro__ if each.__name__ == "Tool")  # the library is not imported for that
    is_tool = any(each.__module__.partition(".")[0] == "pydantic_ai" for each in tools)
    return None if is_tool or callable(getattr(found, "as_tool", None)) else is_function(found)


PYTHON_AGENT: Final = Reference("agent", _agent, "V-A2")


class ModelShape(OfText):
    """A model: a provider's by its name, or one that a module makes."""

    description = "a model as provider:model; or a reference to a function that makes one, as package.module:attribute"

    def findings(self, value: str, location: DocumentLocation) -> Iterator[Finding]:
        if is_made_here(value):
            near = nearest(value.partition(":")[0], PROVIDERS)
            for found in _MAKER.findings(value, location):
                yield replace(found, nearest=near and f"{near}:{value.partition(':')[2]}")


class SettingsShape(MapOf):
    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        yield from super().findings(value, location)
        if value.get("max_retries"):
            message = "would retry inside an attempt, where retries are not counted: set `max_retries` on the agent, or in a step's `config`"
            yield location.at("max_retries").finding("Y-VALUE", message)


_MAKER: Final = Reference("model", is_function)
NAMED_AGENT: Final = Named(("agents",), PYTHON_AGENT)
"""An agent of this document, or one that a module holds."""

PROCESSING: Final = Processing(NAMED_AGENT)
PROMPT: Final = Table(
    {
        "from_file": Key(TEXT, "A text file, by its path from the blueprint's folder."),
        "text": Key(TEXT, "The text itself: what `from_file` becomes in the blueprint that is stored with a run."),
        "variables": Key(MapOf(ANY), "The values of its variables, such as `{{ name }}`."),
    },
    "a prompt",
    one_of=(("from_file", "text"),),
)
AGENT: Final = Table(
    {
        "model": Key(
            ModelShape(),
            "The model that is asked, as `provider:model`; or `module:attribute`, a function that makes it.",
            required=True,
        ),
        "name": Key(TEXT, "Its name in traces; its key by default."),
        "system_prompt": Key(AnyOf((TEXT, PROMPT)), "The system prompt."),
        "output_schema": Key(JsonSchema(), "The JSON Schema of its answers; without one it answers with text."),
        "model_settings": Key(
            SettingsShape(ANY, "setting"),
            "Sent with every call, such as `temperature`; a step's `config` overrides them.",
        ),
        "timeout": Key(Number(above=0), "The timeout of an attempt in seconds, for its steps that set none."),
        "max_retries": Key(
            Number(least=0, whole=True), "The retries after a failed attempt, for its steps that set none."
        ),
        "tools": Key(
            ListOf(Reference("tool", _tool)),
            "Functions, `pydantic_ai.Tool`s, and agents as tools, that the model may call.",
        ),
        "processing": Key(PROCESSING, "AROS for its steps; a step's own `processing` overrides it, key by key."),
    },
    "an agent",
)


class ById(Table):
    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping) and "id" in value


BY_ID: Final = ById({"id": Key(NAMED_AGENT, "Its reference.", required=True)}, "an agent's reference")
ANY_AGENT: Final = AnyOf((NAMED_AGENT, BY_ID, AGENT))
"""The value of a step's `agent`."""


VERSION: Final = "0.1"
TIMEOUT: Final = MappingProxyType({"timeout": "timeout_s"})
"""Other names of a config's fields."""
CONDITION: Final = Reference("condition", is_function)


class ImportShape:
    """Another blueprint: its file, a reference to a pipeline, or the blueprint itself."""

    description = "a blueprint's file, a reference to a pipeline as package.module:attribute, or a blueprint's own keys"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping) or TEXT.fits(value)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if isinstance(value, Mapping):
            yield from DOCUMENT.findings(value, replace(location, document=value))
        elif not is_file(value):
            yield from _PIPELINE.findings(value, location)


class WhenShape(OfText):
    """A condition: an expression, or a reference to a function."""

    description = f"{EXPRESSION.description}; or {CONDITION.description}"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        yield from (CONDITION if is_reference(value) else EXPRESSION).findings(value, location)


class RegistryShape(MapOf):
    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if not value:
            yield location.finding("Y-VALUE", "it does not contain agents")
        for name in value:
            yield from (location.at(name).finding("Y-VALUE", wrong) for wrong in registry_findings(name))
        yield from super().findings(value, location)


def function(what: str) -> Reference:
    return Reference(what, is_function)


MAPPER: Final = function("mapper")


def words_or(words: Any, other: str) -> OneOfOr:
    return OneOfOr(OneOf(tuple(sorted(map(str, words)))), function(other))


def _pipeline(found: Any) -> str | None:
    fits = isinstance(found, Pipeline | Step) or inspect.isfunction(found)
    return None if fits else f"is a {type(found).__name__}, not a Pipeline"


_PIPELINE: Final = Reference("pipeline", _pipeline, "V-I1")
_PROCESSORS: Final = ListOf(Reference("processor"))
_PLUGIN: Final = Table(
    {
        "plugin": Key(Reference("plugin"), "The plugin.", required=True),
        "priority": Key(Number(whole=True), "Higher is asked first; 0 by default."),
    },
    "a plugin",
)
LIMIT: Final = Table(
    {
        "name": Key(LIMIT_NAME, "The name that attempts are counted under.", required=True),
        "at_once": Key(COUNT, "How many attempts may run at once.", required=True),
        "scope": Key(OneOf(get_args(AttemptScope)), "Which attempts share the name; global by default."),
        "on_full": Key(OneOf(get_args(OnFull)), "The policy for further attempts; queue by default."),
    },
    "a limit",
)
RUN_LIMIT: Final = Table(
    {
        "key": Key(RUN_LIMIT_KEY, "The key that runs are counted under.", required=True),
        "most": Key(COUNT, "How many runs may be under way at once.", required=True),
        "scope": Key(OneOf(get_args(LimitScope)), "Which runs share the key; global by default."),
        "on_full": Key(OneOf(get_args(OnFull)), "The policy for further runs; queue by default."),
    },
    "a limit of runs",
)


class ScheduleShape(Table):
    def findings(self, value: Mapping[str, Any], location: DocumentLocation) -> Iterator[Finding]:
        found = list(super().findings(value, location))
        yield from found
        if not found:
            try:
                Schedule(name=str(location.path[-1]), pipeline="", **value)
            except ConfigurationError as error:
                if not isinstance(error.__cause__, ImportError):  # only adding the schedule needs the library
                    yield location.finding("Y-VALUE", error.message)


SCHEDULE: Final = ScheduleShape(
    {
        "cron": Key(TEXT, "A cron line of five fields, such as `30 2 * * 1-5`."),
        "every_s": Key(COUNT, "Or: the seconds between two firings, counted from 1970-01-01 00:00 UTC."),
        "zone": Key(TEXT, "The time zone of the cron line; UTC by default."),
        "jitter_s": Key(Number(least=0), "Seconds up to which each firing is delayed; 0 by default."),
        "until": Key(TEXT, "Nothing fires after this time, as `2027-01-31T00:00:00Z`."),
        "input": Key(ANY, "The first step's input."),
        "tenant": Key(TEXT, "The owner of the runs."),
        "overlap": Key(OneOf(OVERLAPS), "What happens while the run before is under way; skip by default."),
        "catch_up": Key(OneOf(CATCH_UPS), "Which firings that workers missed are made up for; last by default."),
        "options": Key(MapOf(ANY, "option"), "Further options of the runs, such as `queue` and `priority`."),
    },
    "a schedule",
    one_of=(("cron", "every_s"),),
)
WORK: Final[Mapping[str, Key]] = {
    "input": Key(TEMPLATE, "What the agent gets, instead of the output of the step before."),
    "input_schema": Key(
        JsonSchema(), "The schema or type of the input; any other input fails the step before its agent is asked."
    ),
    "config": Key(
        Model(StepConfig, "config", TIMEOUT), "Retries, timeout (`timeout` is `timeout_s`) and model options."
    ),
    "plugins": Key(
        ListOf(AnyOf((Reference("plugin"), _PLUGIN))), "Objects with `validate(data)`; a refusal ends the step."
    ),
    "validators": Key(
        ListOf(Reference("validator")),
        "Objects with `validate(output, *, context)`, or functions; a refusal ends the step.",
    ),
    "static_invariants": Key(
        ListOf(WhenShape()), "What must be true of the output and the context after this step; a violation ends it."
    ),
    "processing": Key(PROCESSING, "How the model's output is requested, read and repaired (AROS)."),
    "prompt_processors": Key(_PROCESSORS, "Processors that the input passes through before the agent is asked."),
    "output_processors": Key(_PROCESSORS, "Processors that the answer passes through after AROS has read it."),
    "queue": Key(TEXT, "The Celery queue that the step runs on."),
    "limit": Key(LIMIT, "How many attempts may run at once under a name, in all workers together."),
}


def field_of(name: str, keys: Mapping[str, Key], cls: type[Step | Pipeline]) -> str | None:
    """Return the field of a class whose value a key's shape builds and writes; None for agents, `config`, the keys of WORK, and no field."""
    key = keys.get(name)
    if key is None or key.shape is ANY_AGENT or name == "config" or WORK.get(name) is key:
        return None
    field = key.field or name
    return field if field in cls.__dataclass_fields__ else None


DOCUMENT: Final = Table(
    {
        "version": Key(OneOf((VERSION,)), "The version of the blueprint format."),
        "name": Key(TEXT, "The name that runs are listed under; the file's name by default."),
        "pipeline_version": Key(TEXT, "For your own use; stored with every run.", field="version"),
        "on_change": Key(
            OneOf(ON_CHANGE),
            "What happens to a run when its code has changed; the project's `[runs] on_change` by default.",
        ),
        "on_body_change": Key(
            OneOf(ON_BODY_CHANGE),
            "What happens to a run whose conversation would continue with other code; `warn` by default.",
        ),
        "stream": Key(FLAG, "Whether what all steps do and say while they run is streamed to readers of the run."),
        "context_migrations": Key(
            MapOf(Reference("migration", is_function), "version or fingerprint"),
            "Functions for contexts that were written with other fields of the context model.",
        ),
        "context_model": Key(
            AnyOf((Reference("context model"), NULL)),
            "The pydantic model of the runs' context; `PipelineContext` by default, none for null.",
        ),
        "resources": Key(
            Reference(RESOURCES), "The object that agents, processors, plugins and validators get as `resources`."
        ),
        "hooks": Key(ListOf(Reference(HOOK, is_function)), "Functions that workers call with the events of a run."),
        "agents": Key(MapOf(AGENT, "agent"), "Agents, by name."),
        "imports": Key(MapOf(ImportShape(), "import"), "Other blueprints, by name."),
        "steps": Key(BODY, "The steps, which run one after the other.", required=True),
        "static_invariants": Key(ListOf(WhenShape()), "What must be true after every step; a violation ends the step."),
        "run_limits": Key(ListOf(RUN_LIMIT), "How many of its runs may be under way at once."),
        "schedules": Key(
            MapOf(SCHEDULE, "schedule"),
            "When it runs, by the schedules' names; `flujo schedules add` of the file adds them.",
        ),
    },
    "a blueprint",
)
