"""The import graph of files: no circles, and one door to each service library. import-linter holds the floors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ("flujo_client", "flujo_worker")
    for path in (ROOT / package).rglob("*.py")
}

DOORS = {
    "celery": {
        "flujo_client.config.app_settings": "finds the app that `flujo -A` names",
        "flujo_worker.celery_app.app": "attaches to an application",
        "flujo_worker.celery_app.own_app": "makes our own",
        "flujo_worker.agents.task_call": "runs a task of yours in an attempt",
        "flujo_worker.cli": "starts Celery's worker and beat",
        "flujo_worker.celery_app.consumer": "is the pool, the steps and the strategy that Celery's worker runs",
        "flujo_worker.processes.quarantine": "checks that what a path names is an application",
        "flujo_worker.celery_app.tasks": "registers the tasks",
        "flujo_worker.celery_app.canvas": "starts runs for canvases, and does there what the end of a task does",
        "flujo_client.pipeline.canvas": "makes signatures, reads canvases, and finds their tasks",
    },
    "kombu": {
        "flujo_client.transport.rabbit": "publishes to RabbitMQ, by kombu's URLs and connections",
        "flujo_client.transport.wire": "registers the serializer",
        "flujo_worker.celery_app.canvas": "stores the request of a task",
        "flujo_worker.celery_app.consumer": "is the channel that messages are taken from",
    },
    "redis": {
        "flujo_client.transport.redis": "connects, and names the errors, for client and worker",
        "flujo_client.embedded.fake_redis": "is a server in a process of its own: it meets fakeredis's errors and connects to nothing",
    },
    "psycopg": {
        "flujo_client.transport.postgres": "says what errors mean and how to connect, for client and worker",
        "flujo_client.gateway.async_door": "performs the client's statements, awaited",
        "flujo_client.gateway.door": "performs the client's statements, and blocks",
        "flujo_client.gateway.transaction": "finds the connection in what callers give",
        "flujo_client.gateway.run_watch": "listens to notifications, on a connection that is no pool's",
        "flujo_worker.chaos": "is a client of the Postgres that it breaks, and asks again by what errors mean",
        "flujo_worker.store": "is the worker's statements; a door around cursors and transactions would only repeat psycopg",
    },
    "psycopg_pool": {
        "flujo_client.gateway.async_door": "keeps the async client's connections",
        "flujo_client.gateway.door": "keeps the client's connections",
        "flujo_worker.store.postgres.pool": "keeps the worker's connections",
    },
    "pydantic_ai": {
        "flujo_client.live": "writes AG-UI and Vercel's chunks by its encoders, where a browser asks for them",
        "flujo_worker.agents": "asks models",
        "flujo_worker.testing.durability": "has agents that are killed, and runs without the rest",
    },
    "opentelemetry": {"flujo_worker.traces": "exports, and sets the current span of attempts"},
}
"""The modules and packages that import each library, and why there."""

TYPED_CIRCLES = {
    # Steps, containers and pipelines name each other in annotations.
    "flujo_client.pipeline": "flujo_client.pipeline",
    "flujo_client.pipeline.factories": "flujo_client.recipes",
    "flujo_client.contract.tree": "flujo_client.contract.trace",
    # A schema that overlaps is asked by a walk over its own parts.
    "flujo_client.schemas.overlap": "flujo_client.schemas.schema",
    "flujo_client.api.handle": "flujo_client.api.client",
    # A kind of step names in annotations what builds, writes and examines it.
    "flujo_client.blueprint.kind": "flujo_client.blueprint",
    "flujo_worker.agents.factory": "flujo_worker.agents.tool",
    "flujo_worker.agents.sub_agent": "flujo_worker.agents.tool",
    "flujo_demo.ruling": "flujo_demo.license_audit",
    "flujo_worker.testing.recorded_run": "flujo_worker.testing.local_engine",
}
"""The imports for typing only that close a circle, as (importer, imported) prefixes."""


def imports(node: ast.AST, *, typed: bool, is_typed: bool = False) -> Iterator[str]:
    """Yield what is imported below a node, inside functions too; `typed` includes what only type checkers import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            if typed:
                yield from imports(child, typed=typed, is_typed=True)
            yield from (name for other in child.orelse for name in imports(other, typed=typed))
        else:
            yield from imports(child, typed=typed, is_typed=is_typed)


def imported(module: str, *, typed: bool = False) -> frozenset[str]:
    """Return the modules and names that a file imports."""
    return _imported(module)[typed]


@cache
def _imported(module: str) -> dict[bool, frozenset[str]]:
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    return {typed: frozenset(imports(tree, typed=typed)) for typed in (False, True)}


def graph(*, typed: bool) -> dict[str, set[str]]:
    """Return which file imports which; a package's `__init__` is where circles are tied on purpose, and stays out."""
    nodes = {module for module in FILES if not module.endswith(".__init__")}
    return {
        module: {
            found for name in imported(module, typed=typed) if (found := _file_of(name)) in nodes and found != module
        }
        for module in nodes
    }


def _file_of(name: str) -> str:
    return name if name in FILES else name.rpartition(".")[0]


def test_no_file_imports_itself_through_others():
    try:
        TopologicalSorter(graph(typed=False)).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_every_circle_for_typing_is_listed():
    executed = graph(typed=False)
    listed = {
        module: {name for name in names if not _is_listed(module, name, names - executed[module])}
        for module, names in graph(typed=True).items()
    }
    try:
        TopologicalSorter(listed).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports for typing that TYPED_CIRCLES does not list: {' <- '.join(error.args[1])}")


def _is_listed(module: str, name: str, only_typed: set[str]) -> bool:
    return name in only_typed and any(
        module.startswith(importer) and name.startswith(target) for importer, target in TYPED_CIRCLES.items()
    )


@pytest.mark.parametrize("library", DOORS)
def test_each_library_has_its_doors(library):
    """M-046, M-053: only `flujo_worker.agents` makes agents and knows their library; policies know neither it nor a provider's."""
    users = {module for module in FILES if any(name.split(".")[0] == library for name in imported(module))}
    doors = {door: {user for user in users if f"{user}.".startswith(f"{door}.")} for door in DOORS[library]}
    assert not users - set().union(*doors.values()), f"{library} is imported outside of {list(doors)}"
    assert all(doors.values()), (
        f"{library} is imported by none of {[door for door, found in doors.items() if not found]}"
    )
