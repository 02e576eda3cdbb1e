"""`docs/how-to/migrate-from-flujo.md` names what the requirements list of the original, and says of each what the code has (M-032).

Both ways: what the page says is so is so, and what the classes have is on the page, or in `come_from_flujo.md` as the same or as new.
"""

import ast
import enum
import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path

import click
import pytest
from for_each import for_each
from pydantic import BaseModel

import flujo_worker
from flujo_client import errors
from flujo_client.api.original_options import _DEFAULTS
from flujo_client.cli import run
from flujo_client.cli.main import cli
from flujo_client.pipeline.container import Container
from flujo_client.pipeline.step import Step

PAGE = Path(__file__).parents[2] / "docs/how-to/migrate-from-flujo.md"
NO_DEFAULT = object()


def parts(path):
    """Return what a document says under each of its headings."""
    pieces = re.split(r"^##+ (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


SHOWN, ALIKE = parts(PAGE), parts(Path(__file__).with_name("come_from_flujo.md"))
OPTIONS, COMMANDS = (SHOWN[title] + ALIKE.pop(title) for title in ("Options of `flujo run`", "Commands"))
PARTS = {title: part + SHOWN.get(title, "") for title, part in ALIKE.items()}
TITLES = list(PARTS)
NAME = re.compile(r"`[^`]+`")


def listed(part, word):
    """Return the names in the sentence that begins with a word."""
    sentence = re.search(rf"^{word}: (.+?)\.$", part, re.MULTILINE | re.DOTALL)
    return [" ".join(name.split()) for name in NAME.findall(sentence[1] if sentence else "")]


def rows(part):
    """Return a part's names, one in a row: those that are the same, those that are new, and the table of those that differ."""
    yield from ((name, "same", "") for name in listed(part, "Same"))
    yield from (("", name, "") for name in listed(part, "New"))
    for line in part.splitlines():
        if line.startswith("| ") and not line.startswith("| `flujo` |"):
            original, here, note = (cell.strip() for cell in line.strip("|").split("|"))
            yield from ((name, here, note) for name in NAME.findall(original))


ROWS = {title: [*rows(part)] for title, part in PARTS.items()}
CASES = [(title, *row) for title, rows in ROWS.items() for row in rows]

# What a table is about; the other tables are about names of modules.
SUBJECTS = {
    "`Flujo(…)`": flujo_worker.Flujo,
    "Methods of `Flujo`": flujo_worker.Flujo,
    "Ways to make and join steps": Step,
} | {
    f"`{kind.__name__}`": kind for name in flujo_worker.__all__ if inspect.isclass(kind := getattr(flujo_worker, name))
}
# What the engine asks steps for; no one who writes pipelines calls it.
ENGINE = {
    "agent_registry", "begins_with", "body_of", "bodies", "findings", "functions", "is_fan_out", "kind", "options", "performs",
    "place_inside", "roles", "rules", "schema", "spec", "traits",
}  # fmt: skip
# Two tables are about one class.
ELSEWHERE = {
    "`Flujo(…)`": "Methods of `Flujo`", "Methods of `Flujo`": "`Flujo(…)`",
    "`Step`": "Ways to make and join steps", "Ways to make and join steps": "`Step`",
}  # fmt: skip
# Of these the page names only what the original has.
PARTIAL = {
    "Top level",
    "Agents",
    "Processors",
    "Validators and plugins",
    "Outcomes",
    "Other models",
    "Exceptions",
}


def read(cell):
    """Split `name(a, b=1)` or `name=1` into the name, and what follows."""
    name, rest = re.fullmatch(r"`([\w.:]+)(.*)`", cell).groups()
    return name, rest


def owner(title):
    return SUBJECTS.get(title)


def found(title, name):
    """What the page's table means by a name; NO_DEFAULT if there is none."""
    subject = owner(title)
    if subject is not None:
        if title == "`Flujo(…)`":
            return inspect.signature(subject).parameters.get(name, _DEFAULTS.get(name, NO_DEFAULT))
        if name in model_fields(subject) or hasattr(subject, name):
            return getattr(subject, name, name)
    place, _, attribute = name.rpartition(":")
    if place:
        return getattr(import_module(place), attribute, NO_DEFAULT)
    thing = flujo_worker
    for part in name.removeprefix("flujo_worker.").split("."):
        thing = errors if part == "errors" else getattr(thing, part, getattr(errors, part, NO_DEFAULT))
        if thing is NO_DEFAULT and part == "replay":
            thing = import_module("flujo_worker.replay")
    return thing


def model_fields(kind):
    """The fields that a class is made with, and their defaults."""
    if issubclass(kind, enum.Enum):
        return {each.name: each.value for each in kind}
    if issubclass(kind, BaseModel):
        return {
            name: MISSING if each.is_required() else each.get_default(call_default_factory=True)
            for name, each in kind.model_fields.items()
        }
    if is_dataclass(kind):
        return {
            each.name: each.default if each.default_factory is MISSING else each.default_factory()
            for each in fields(kind)
            if each.init
        }
    return {}


def default(title, name):
    subject = owner(title)
    if title == "`Flujo(…)`":
        parameter = inspect.signature(subject).parameters.get(name)
        given = _DEFAULTS[name][0] if parameter is None else parameter.default
    else:
        given = model_fields(subject)[name]
    return given.value if isinstance(given, enum.Enum) else given


def parameters(written):
    """`(a, b=1)` as a mapping of names to defaults."""
    inside = written.strip("()")
    pairs = [each.strip().partition("=") for each in inside.split(",")] if inside else []
    return {name: ast.literal_eval(value) if value else MISSING for name, _, value in pairs}


def check_signature(title, name, written):
    thing = found(title, name)
    asked = parameters(written)
    if inspect.isclass(thing) and model_fields(thing):
        assert asked.keys() <= model_fields(thing).keys()
        assert {key: model_fields(thing)[key] for key, value in asked.items() if value is not MISSING} == {
            key: value for key, value in asked.items() if value is not MISSING
        }
        return
    taken = inspect.signature(thing).parameters
    known = [each for each in taken.values() if each.name not in ("self", "cls")]
    for index, (key, value) in enumerate(asked.items()):
        if value is MISSING and key not in taken:  # one that is given by its place
            assert known[index].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, (title, name, key)
        elif value is not MISSING:
            assert (None if key in options_of(thing) else taken[key].default) == value, (title, name, key)


def options_of(function):
    """Return the options that a function takes as `**options: Unpack[…]`; each is as None when it is left out."""
    named = re.fullmatch(r"Unpack\[(\w+)\]", getattr(function, "__annotations__", {}).get("options", ""))
    return function.__globals__[named[1]].__annotations__ if named else {}


def check(title, cell):
    """Hold what a cell says against the code."""
    name, rest = read(cell)
    assert found(title, name) is not NO_DEFAULT, f"there is no {name}"
    if rest.startswith("="):
        assert default(title, name) == ast.literal_eval(rest[1:]), name
    elif rest:
        check_signature(title, name, rest)


@for_each({f"{title}, {original or here}": (title, original, here, note) for title, original, here, note in CASES})
def test_what_the_page_says_of_a_name_is_so(title, original, here, note):
    """M-032: the same, by another name or not here; what is not here says what to use."""
    if here == "no":
        name, _ = read(original)
        subject = owner(title)
        assert (found(title, name) is NO_DEFAULT) if subject is None else not hasattr(subject, name)
        assert name not in (model_fields(subject) if subject else {})
        assert note
    elif here == "same":
        check(title, original)
    else:
        check(title, here)
        if original and read(original)[0] != read(here)[0]:
            assert found(title, read(original)[0]) is NO_DEFAULT, "it is here by its own name, too"


@pytest.mark.parametrize("title", [title for title in TITLES if title not in PARTIAL])
def test_what_a_class_has_is_on_the_page(title):
    """M-032, the other way round: nothing that the code has is left out."""
    kind = SUBJECTS[title]
    named = {
        read(cell)[0]
        for each in (title, ELSEWHERE.get(title))
        if each
        for row in ROWS[each]
        for cell in row[:2]
        if "`" in cell
    }
    if title == "`Flujo(…)`":
        has = (set(inspect.signature(kind).parameters) | set(_DEFAULTS)) - {"original"}
    else:
        common = set(dir(Container)) | set(Container.__dataclass_fields__) if issubclass(kind, Container) else set()
        inherited = {name for base in (BaseModel, enum.Enum, str) if issubclass(kind, base) for name in dir(base)}
        nested = set(dir(flujo_worker.ImportStep)) if kind is flujo_worker.TreeSearchStep else set()
        has = {
            name for name in {*dir(kind), *model_fields(kind)} - inherited - common - nested if not name.startswith("_")
        }
    assert has - ENGINE - named == set()


def test_every_exception_of_ours_is_in_the_reference_and_every_one_of_theirs_here():
    """§2.10: the members of the original's families, as the requirements list them."""
    listed = {read(row[0])[0] for row in ROWS["Exceptions"]}
    families = {
        "FlujoError", "ControlFlowError", "PausedException", "PipelineAbortSignal", "InfiniteRedirectError", "InfiniteFallbackError",
        "ExecutionError", "UsageLimitExceededError", "OrchestratorRetryError", "AgentIOValidationError", "NonRetryableError",
        "ResumeError", "ReplayError", "PluginError", "StepInvocationError", "ImproperStepInvocationError", "ParallelStepError",
        "ConfigurationError", "SettingsError", "PricingNotConfiguredError", "MissingAgentError", "HitlPolicyError",
        "RewardModelUnavailable", "FeatureDisabled", "BlueprintError", "ContextError", "PipelineContextInitializationError",
        "ContextInheritanceError", "ContextFieldError", "ContextIsolationError", "ContextMergeError", "ContextMutationError",
        "ValidationError", "TypeMismatchError", "TemplateResolutionError",
    }  # fmt: skip
    assert listed == families


def test_the_options_of_run_are_as_the_page_says():
    """§2.8, both ways."""
    listed = [[cell.strip("`") for cell in row] for row in rows(OPTIONS)]
    has = {name for each in run.command.params for name in [*each.opts, *each.secondary_opts] if name.startswith("--")}
    assert {original for original, here, _ in listed if here == "same"} <= has
    assert {original for original, here, _ in listed if here == "no"} & has == set()
    assert {name for row in listed for name in row[:2] if name.startswith("--")} >= has
    assert [row for row in listed if row[1] == "no" and not row[2]] == []


def commands(group=cli, place=()):
    """Every command, with its groups' names before its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield " ".join((*place, name))
        if isinstance(command, click.Group):
            yield from commands(command, (*place, name))


def test_the_commands_are_as_the_page_says():
    """§2.8: what is the same is here, what is not has something else to use, and other names are those of commands."""
    has = set(commands())
    listed = [(original.strip("`"), here.strip("`"), note) for original, here, note in rows(COMMANDS)]
    assert {original for original, here, _ in listed if here == "same"} <= has
    assert {here for _, here, _ in listed if here not in ("same", "no")} <= has
    assert {original for original, here, _ in listed if here != "same"} & has == set()
    assert all(note for _, here, note in listed if here == "no")


def test_the_page_has_what_the_requirements_list_of_the_original():
    """M-032, §2.5 and §2.8, so that no name is left out of the page."""
    names = {
        read(row[0])[0]
        for title in ("Top level", "Agents", "Processors", "Validators and plugins")
        for row in ROWS[title]
    }
    assert names >= {
        "make_agent_async", "make_templated_agent_async", "enable_structured_output", "AddContextVariables", "StripMarkdownFences",
        "EnforceJsonResponse", "SerializePydantic", "DiffProcessor", "DeterministicRepairProcessor", "JsonRegionExtractorProcessor",
        "TolerantJsonDecoderProcessor", "SmartTypeCoercionProcessor", "validator", "ValidationResult", "PluginOutcome",
        "RunAgentCommand", "AskHumanCommand", "FinishCommand",
    }  # fmt: skip
    assert {row[0].strip("`") for row in rows(COMMANDS)} == {
        *("run", "validate", "status", "migrate", "init", "demo", "create"),
        *(
            f"lens {each}"
            for each in ("list", "get", "show", "trace", "spans", "stats", "evals", "replay", "from-file")
        ),
        *(f"lock {each}" for each in ("generate", "verify", "compare", "show")),
        *(f"dev {each}" for each in ("health-check", "version", "show-config", "explain", "validate", "compile-yaml")),
        *(f"dev {each}" for each in ("visualize", "import-openapi", "gen-context", "budgets show")),
        *(f"dev experimental {each}" for each in ("solve", "bench", "add-case", "improve")),
    }
