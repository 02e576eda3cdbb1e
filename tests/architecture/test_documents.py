"""The documents say what is: links and paths lead somewhere, examples are files, tables equal the code."""

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import click
from celery import Celery
from for_each import for_each
from metrics_table import page_with_tables
from settings_table import page_with, settings_table

import flujo_client
from flujo_client import errors
from flujo_client.cli.main import _OPERATORS, _OURS, cli
from flujo_client.config.errors import LEGACY_VARIABLES
from flujo_client.config.manager import _VARIABLES, ConfigManager, meanings
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker import errors as worker_errors
from flujo_worker import failpoints
from flujo_worker.domain import transitions

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "changes").glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`((?:flujo_client|flujo_worker|tests|docs|examples|deploy|changes)/[\w./-]*)`")
MODULE = re.compile(r"`(flujo_(?:client|worker)(?:\.\w+)+)[`(]")
PYTHON = re.compile(r"^```python\n# (examples/\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SQL_EVENT = re.compile(r"'((?:run|step|attempt|outcome|join|background|guard|flujo\.budget)\.[a-z_]+)'")

each_page = for_each({name: (page,) for name, page in zip(NAMES, PAGES, strict=True)})


@cache
def text(page: Path | str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub and the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(page, *, columns, heading=None):
    """The rows of a page's tables that have so many columns; under a heading, where one is given."""
    part = text(page) if heading is None else text(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]
    return [row for row in rows if len(row) == columns]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


@each_page
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(text(page)):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_every_test_that_shows_a_protection_exists():
    """And every protection names one."""
    rows = table("SECURITY.md", columns=2)[1:]
    assert rows
    for protection, shown_by in rows:
        named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", shown_by)
        assert named, protection
        assert [each for each, path in named if f"def {each}(" not in text(path)] == [], protection


@each_page
def test_every_path_and_module_that_is_named_exists(page):
    assert [path for path in CODE.findall(text(page)) if not (ROOT / path).exists()] == []
    for name in MODULE.findall(text(page)):
        assert found(name), name


def found(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return hasattr(import_module(module), attribute)
    return True


@each_page
def test_what_is_shown_of_an_example_is_in_it(page):
    """Other tests run `examples/`. What else a page shows is followed by `make pages`."""
    for path, shown in PYTHON.findall(text(page)):
        assert shown in text(path), f"{path} does not hold:\n{shown}"


def test_every_piece_of_toml_is_read_as_settings(tmp_path):
    """M-151: by the reader that reads yours; a piece that names an app leaves the broker to it."""
    app = Celery(broker="redis://localhost", set_as_current=False)
    for page in PAGES:
        for piece in TOML.findall(text(page)):
            (file := tmp_path / "flujo.toml").write_text(piece)
            named = app if re.search("^app = ", piece, re.MULTILINE) else None
            assert ConfigManager(file, environ={}, app=named).settings(), page


@each_page
def test_nothing_more_is_promised_than_is_kept(page):
    """Design §1: merged exactly once, run at least once; and no page says where or how it was written."""
    assert not re.search(
        r"(?i)exactly[- ]once (execution|delivery|processing)|(run|called|executed) exactly once", text(page)
    )


def test_every_page_is_reached_from_the_index():
    index = (ROOT / "docs/index.md", ROOT / "docs/adr/README.md")
    linked = {(page.parent / link).resolve() for page in index for link in LINK.findall(text(page))}
    assert set((ROOT / "docs").rglob("*.md")) - {index[0]} - linked == set()


def test_the_site_shows_every_page_and_describes_every_public_name():
    """Decisions are reached from their index."""
    navigation = set(re.findall(r'"([\w/-]+\.md)"', text("zensical.toml")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert navigation == {page for page in pages if not re.match(r"adr/\d", page)}
    described = re.findall(r"^::: flujo_client\.(\w+)$", text("docs/reference/api.md"), re.MULTILINE)
    assert sorted(described) == sorted(flujo_client.__all__)


def test_every_decision_is_in_the_index_under_its_title_status_and_date():
    """House §9: with a status and the dates of what was decided; a number without a record names the one that superseded it."""
    listed = {link: each for link, *each in index_of_decisions()}
    files = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    superseded = [int(number) for number, _ in table("docs/adr/README.md", columns=2) if number.isdecimal()]
    numbers = sorted([*superseded, *(int(file.name[:4]) for file in files)])
    assert numbers == list(range(1, len(numbers) + 1))
    assert list(listed) == [file.name for file in files]
    for file in files:
        title, status, date = listed[file.name]
        assert re.search(r"\d{4}-\d\d-\d\d", date)
        assert text(file).startswith(f"# {int(file.name[:4])}. {title}\n\nStatus: {status}\n\nDate: {date}\n\n")


def index_of_decisions():
    for number, title, status, date in table("docs/adr/README.md", columns=4):
        if link := LINK.search(number):
            yield link[1], title, status, date


@for_each({file.name[:4]: (file,) for file in (ROOT / "docs/adr").glob("[0-9]*.md")})
def test_a_decision_has_its_four_parts(file):
    assert re.findall(r"^## (.+)$", text(file), re.MULTILINE) == ["Context", "Decision", "Consequences", "Alternatives"]


def test_the_table_of_settings_is_made_from_their_models():
    """Each setting is described once, beside its key: `make settings` writes the table anew."""
    assert text("docs/reference/configuration.md") == page_with(settings_table())
    assert meanings().keys() == _VARIABLES.keys()
    assert [name for name, meaning in meanings().items() if not meaning] == []


def test_the_tables_of_metrics_are_made_from_their_definitions():
    """`make settings` writes them anew."""
    assert text("docs/reference/metrics.md") == page_with_tables()


def test_every_variable_of_the_original_that_is_refused_is_listed():
    rows = table("docs/reference/configuration.md", columns=2, heading="From the original project")
    assert {name for row in rows for name in words(row[0])} == LEGACY_VARIABLES.keys()


def test_every_public_name_is_in_the_reference():
    """What users may import is told, each by its own name."""
    reference = "\n".join(text(page) for page in sorted((ROOT / "docs/reference").glob("*.md")))
    told = {name for piece in re.findall(r"`([^`\n]+)`", reference) for name in re.findall(r"\w+", piece)}
    assert set(flujo_client.__all__) - told == set()


def test_every_option_of_the_facade_is_listed():
    rows = table("docs/reference/client.md", columns=2, heading="Flujo and TaskClient")
    listed = [name for row in rows for name in words(row[0])]
    assert listed == [name for name in inspect.signature(flujo_client.Flujo).parameters if name != "original"]


def test_each_test_that_answers_a_guide_exists():
    page = (ROOT / "docs/explanation/stay-on-celery.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)
    assert named
    for file, name in named:
        assert [True for found in (ROOT / "tests").rglob(file) if f"def {name}(" in found.read_text(encoding="utf-8")]


def test_every_event_is_listed():
    listed = {name for row in table("docs/reference/events.md", columns=4) for name in words(row[0])}
    told, made = events_in_sql() | events_in_python(), events_made_in_python()
    assert told - listed == set()
    assert {name for name in listed - told if not any(shape.fullmatch(name) for shape in made)} == set()
    assert [shape.pattern for shape in made if not any(map(shape.fullmatch, listed))] == []


def events_in_sql():
    """A name is written out, or made of the run's new status where a run is wound down."""
    files = [file.read_text(encoding="utf-8") for package in ("flujo_client", "flujo_worker") for file in sql(package)]
    made = {f"run.{status}" for status in ("cancelled", "expired") if any("'run.' ||" in file for file in files)}
    return made | {name for file in files for name in SQL_EVENT.findall(file)}


def sql(package):
    return [file for file in (ROOT / package).rglob("*.sql") if file.parts[-2] not in ("migrations", "store")]


def events_in_python():
    return {name.value for name in event_names() if isinstance(name, ast.Constant)}


def events_made_in_python():
    """Names that are made of parts, as patterns: a part that is not written out is one word."""
    return [re.compile("".join(map(part_of, name.values))) for name in event_names() if isinstance(name, ast.JoinedStr)]


def part_of(piece):
    return re.escape(piece.value) if isinstance(piece, ast.Constant) else r"\w+"


@cache
def event_names():
    return [
        node.args[0]
        for file in (ROOT / "flujo_worker").rglob("*.py")
        if "memory" not in file.parts  # it repeats what the SQL says
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and called(node) in {"Event", "emit", "tell"} and node.args
    ]


def called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def test_every_error_is_listed_under_its_parent_with_its_code():
    listed, above = {}, []
    for name, code, _ in table("docs/reference/errors.md", columns=3):
        if words(name):
            depth = name.count("—")
            above[depth:] = words(name)
            listed[above[depth]] = (above[depth - 1] if depth else None, *words(code))
    classes = [kind for module in (errors, worker_errors) for kind in vars(module).values() if is_error(kind)]
    assert listed == {kind.__name__: (parent(kind), kind.code) for kind in classes}


def test_every_finer_code_of_an_error_is_listed():
    page = text("docs/reference/errors.md")
    codes = {
        each.value.value
        for package in ("flujo_client", "flujo_worker")
        for file in (ROOT / package).rglob("*.py")
        for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(each, ast.keyword) and each.arg == "code" and isinstance(each.value, ast.Constant)
    }
    assert {code for code in codes if isinstance(code, str) and code.isupper() and f"`{code}`" not in page} == set()


def is_error(kind):
    return inspect.isclass(kind) and issubclass(kind, errors.FlujoError)


def parent(kind):
    return kind.__base__.__name__ if is_error(kind.__base__) else None


def test_every_transition_is_listed():
    listed = {(what, before): after for what, before, after in table("docs/reference/states.md", columns=3)}
    for what, allowed in (("run", transitions.RUN), ("scope", transitions.SCOPE), ("attempt", transitions.ATTEMPT)):
        told = {before: after for (each, before), after in listed.items() if each == what}
        assert told == {before: ", ".join(sorted(after)) for before, after in allowed.items()}


def commands(group, path="flujo"):
    with click.Context(group, info_name=path) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield from (
                commands(command, f"{path} {name}")
                if isinstance(command, click.Group)
                else [(f"{path} {name}", command)]
            )


def test_every_command_is_listed_with_its_options():
    parts = re.split(r"^## `(.+)`$", text("docs/reference/cli.md"), flags=re.MULTILINE)
    listed = {name: set(re.findall(r"`(--[\w-]+)`", part)) for name, part in zip(parts[1::2], parts[2::2], strict=True)}
    known = {
        path: {max(each.opts, key=len) for each in command.params if isinstance(each, click.Option) and not each.hidden}
        for path, command in commands(cli)
    }
    assert listed == known
    assert {path.split()[1] for path in known} == _OURS.keys() | _OPERATORS.keys()


@cache
def options():
    return {
        path: {"--help"} | {name for each in command.params for name in [*each.opts, *each.secondary_opts]}
        for path, command in commands(cli)
    }


def assert_exists(line):
    path = next((path for path in options() if path.split() == line.split()[: len(path.split())]), None)
    assert path or any(each.startswith(f"{line} ") for each in options()), line
    assert set(re.findall(r"(?<=\s)--[a-z-]+", line)) <= options().get(path, set()), line


@each_page
def test_every_command_that_a_page_names_exists(page):
    for line in re.findall(r"(?:`|^\$ )(flujo [a-z][^`\n]+)", text(page), re.MULTILINE):
        assert_exists(line)


def test_every_command_that_the_product_names_exists():
    """In messages, docstrings, comments, templates and statements; `{…}` stands for words that are not known here."""
    modules = [each for package in ("flujo_client", "flujo_worker") for each in (ROOT / package).rglob("*.*")]
    found = [
        line.strip()
        for module in modules
        if module.suffix in (".py", ".html", ".sql", ".txt")
        for line in re.findall(
            r"(?:[`>\"']|\bor )(flujo [a-z][^`\"'\n,;:\\<]*)", re.sub(r"\{[^{}]*\}", " ", text(module))
        )
    ]
    assert len(found) > 100
    for line in found:
        assert_exists(line)


def test_every_option_of_a_step_is_listed():
    rows = table("docs/reference/pipelines.md", columns=2, heading="Step")
    assert [name for row in rows for name in words(row[0])] == list(Step.__dataclass_fields__)
    rows = [row for row in table("docs/reference/pipelines.md", columns=3, heading="Step") if words(row[0])]
    assert {name for row in rows for name in words(row[0])} == set(StepConfig.model_fields)
    assert rows[0][1] == str(StepConfig().max_retries)


def test_every_failpoint_and_make_target_is_named():
    page = text("docs/development.md")
    assert [name for name in failpoints.NAMES if f"`{name}`" not in page] == []
    targets = re.findall(r"^([a-z-]+):.*## ", text("Makefile"), re.MULTILINE)
    assert sorted(re.findall(r"`make ([a-z-]+)`", page.partition("## Where")[0])) == sorted(targets)


def test_the_map_of_the_code_names_every_folder_and_the_number_of_test_processes():
    page = text("docs/development.md")
    modules = [
        f"{each.name}/" if each.is_dir() else each.name
        for package in ("flujo_client", "flujo_worker")
        for each in (ROOT / package).iterdir()
        if each.name[0] != "_" and each.suffix in ("", ".py")
    ]
    folders = [f"tests/{each.name}/" for each in (ROOT / "tests").iterdir() if list(each.glob("test_*.py"))]
    assert [name for name in [*modules, *folders] if f"`{name}`" not in page] == []
    assert re.search(r"^TEST_PROCESSES \?= 6$", text("Makefile"), re.MULTILINE)
    assert "runs the tests in six processes" in page


def test_every_table_that_grows_is_named_with_what_removes_its_rows():
    created = set(re.findall(r"CREATE TABLE (flujo_\w+)", text("flujo_worker/store/schema.sql")))
    part = text("docs/how-to/deploy.md").partition("## What grows")[2]
    assert {name for name in created if f"`{name}`" not in part} == {
        "flujo_events_default",
        "flujo_exports",
        "flujo_sweeps",
    }


def test_the_readme_shows_the_two_commands_on_its_first_screen():
    first_screen = text("README.md").splitlines()[:40]
    assert first_screen[0] == "# Flujo Worker"
    commands_shown = [line.split("#")[0].strip() for line in first_screen if line.startswith("$ make")]
    assert commands_shown == ["$ make demo", "$ make test"]


@each_page
def test_no_page_holds_a_figure_without_its_source(page):
    """What is measured is in one place, so that no other page can be wrong about it. What a command printed claims nothing."""
    if page.name != "performance.md":
        said = re.sub(r"^```text\n.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"\d\s?(steps/s|runs/s|ms\b|times (as fast|faster))", said)
