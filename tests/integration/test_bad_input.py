"""Invalid requests are rejected at once, with the thing, the place and the way out; and nothing is recorded."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step
from flujo_client.cli.main import cli
from flujo_client.errors import (
    BlueprintError,
    ClientError,
    ConfigurationError,
    MissingAgentError,
    PipelineContextInitializationError,
    PipelineError,
    SchemaVersionError,
    SerializationError,
    ServiceUnreachable,
    SnapshotTooLarge,
)
from flujo_worker.store.migrate import migrate
from tests.support.services import drop_database, fresh_database

# No workers: nothing gets so far. Small snapshots, and only our own modules may be named.
pytestmark = [
    pytest.mark.services,
    pytest.mark.site(
        limits={"snapshot_max_bytes": 10_000, "snapshot_inline_bytes": 1000},
        allowed_imports=("test_bad_input", "missing_module"),
    ),
]

TABLES = ("pipelines", "runs", "scopes", "attempts", "events", "blobs", "inputs")
SECRET = "hunter2"


class Order(BaseModel):
    number: int
    note: str = ""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])
typed = Pipeline([Step("ship", ship)], context_model=Order)
unmanned = Pipeline([Step("ship")])
twofold = Pipeline([Step("a/b", ship), Step("ship", ship), Step("ship", 5)])
not_a_pipeline = {"steps": []}


@pytest.fixture(autouse=True)
def nothing_recorded(request):
    """Count every row before and after."""
    if "site" not in request.fixturenames:
        yield
        return
    site = request.getfixturevalue("site")
    before = counted(site)
    yield
    assert counted(site) == before
    assert site.redis.keys("flujo.*") == []


def counted(site):
    return {table: site.rows(f"SELECT count(*) AS n FROM flujo_{table}")[0]["n"] for table in TABLES}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("missing_module:pipeline", "pipeline 'missing_module:pipeline' not found: no module named 'missing_module'"),
        (
            "test_bad_input:missing",
            "pipeline 'test_bad_input:missing' not found: module 'test_bad_input' has no 'missing'",
        ),
        ("test_bad_input", "'test_bad_input' is not a reference to a pipeline"),
        ("test_bad_input:not_a_pipeline", "'test_bad_input:not_a_pipeline' is a dict, not a Pipeline"),
        ("json:dumps", r"pipeline 'json:dumps' is outside the allowed imports \(test_bad_input, missing_module\)"),
    ],
)
def test_an_unknown_pipeline_is_refused(site, reference, said):
    """M-010, M-014: the reference is named, and why nothing stands there."""
    with pytest.raises(PipelineError, match=said):
        site.client.enqueue(reference, "in")


def test_a_pipeline_that_no_worker_could_find_is_refused(site):
    """M-010: an object that no module holds."""
    with pytest.raises(PipelineError, match="not an attribute of a module"):
        site.client.enqueue(Pipeline([Step("ship", ship)]), "in")


BROKEN = """
agents: {w: {model: gpt-5}}
steps:
  - {name: a, uses: agents.w, sink: letter}
  - {name: b, uses: agents.w, input: "{{ steps.c.output }}"}
"""
HOSTILE = "a: &a [1]\n" + "".join(f"b{n}: &a [*a, *a, *a, *a, *a, *a, *a, *a]\n" for n in range(12))


def test_a_broken_blueprint_is_refused_with_all_findings(site, tmp_path):
    """§2.6, U-44: by every door, with what `flujo validate` tells."""
    file = tmp_path / "letters.yaml"
    file.write_text(BROKEN)
    with pytest.raises(BlueprintError) as refused:
        site.client.enqueue(str(file), "in")
    assert [each.rule for each in refused.value.findings] == ["V-A6", "Y-KEY", "V-T4"]
    for command in ("run", "enqueue", "validate"):
        told = CliRunner().invoke(cli, [command, str(file)], env=site.settings.as_environment())
        assert told.exit_code == 4
        assert "letters.yaml:5:31: V-T4: steps[1].input" in told.output


@pytest.mark.parametrize("text", [HOSTILE, "steps: !!python/object/apply:os.abort []", "[" * 100_000])
def test_a_hostile_blueprint_is_refused(site, tmp_path, text):
    file = tmp_path / "letters.yaml"
    file.write_text(text)
    with pytest.raises(BlueprintError):
        site.client.enqueue(str(file), "in")


def test_everything_wrong_with_a_pipeline_is_told_at_once(site):
    """Requirements §2.10: all findings, not the first."""
    with pytest.raises(PipelineError) as refused:
        site.client.enqueue(twofold, "in")
    told = str(refused.value)
    assert "step 'a/b'" in told
    assert "2 steps have this name" in told
    assert "a int, is not callable" in told
    with pytest.raises(MissingAgentError, match="step 'ship': it has no agent"):
        site.client.enqueue(unmanned, "in")


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"number": "many"}, "does not fit Order: number: "),
        ({}, "does not fit Order: number: Field required"),
        (None, "does not fit Order: number: Field required"),
    ],
)
def test_a_context_that_does_not_fit_its_model_is_refused(site, context, said):
    """M-023, requirements §2.10: the model, the field and the reason are named."""
    with pytest.raises(PipelineContextInitializationError, match=said):
        site.client.enqueue(typed, "in", context=context)


def test_a_context_of_another_class_is_refused(site):
    """M-032: an instance must be the pipeline's model's."""

    class Other(BaseModel):
        number: int = 1

    with pytest.raises(PipelineContextInitializationError, match="is a Other; the pipeline needs a Order"):
        site.client.enqueue(typed, "in", context=Other())


def test_a_value_that_cannot_travel_is_refused(site):
    """M-427, C-15: the path to it is named."""
    with pytest.raises(SerializationError) as refused:
        site.client.enqueue(fine, {"items": [1, {"handle": threading.Lock()}]})
    assert refused.value.path == "input.items[1].handle"


@pytest.mark.parametrize("what", ["input", "context"])
def test_an_oversize_value_is_refused(site, what):
    """C-15: its size and the limit are named, whatever it would be compressed to."""
    large = "x" * 20_000
    value, context = (large, {"number": 1}) if what == "input" else ("in", {"number": 1, "note": large})
    with pytest.raises(SnapshotTooLarge, match=rf"^{what}: 20,\d+ bytes of JSON; at most 10,000") as refused:
        site.client.enqueue(typed, value, context=context)
    assert "send its key" in refused.value.suggestion


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"priority": 10}, "priority 10"),
        ({"deadline_s": 1e300}, "before the year 10000"),
        ({"idempotency_key": ""}, "1 to 200"),
        ({"idempotency_key": "\0"}, "printable"),
    ],
)
def test_an_option_that_cannot_be_is_refused(site, option, said):
    """M-010, M-428."""
    with pytest.raises(ConfigurationError, match=said):
        site.client.enqueue(fine, "in", **option)


@pytest.mark.parametrize(
    ("method", "argument"),
    [("get_run", {"run_id": "\0"}), ("list_runs", {"prefix": "\0"}), ("list_runs", {"limit": -1})],
)
def test_a_question_that_cannot_be_asked_is_refused(site, method, argument):
    """M-428: with an error of ours, by both clients."""

    async def ask():
        async with AsyncFlujoClient(site.settings) as client:
            await getattr(client, method)(**argument)

    with pytest.raises(ClientError, match="Postgres does not accept this value: "):
        getattr(site.client, method)(**argument)
    with pytest.raises(ClientError, match="Postgres does not accept this value: "):
        asyncio.run(ask())


def test_a_broker_that_does_not_answer_is_told_before_anything_is_recorded(site):
    """M-001: an enqueue that fails has left nothing; the URL is shown without its password, with the way out."""
    settings = site.settings.with_services(site.settings.database(), f"redis://:{SECRET}@127.0.0.1:1/0")
    for enqueue in (enqueue_fine, enqueue_fine_async):
        with pytest.raises(ServiceUnreachable, match=r"redis://:\*\*\*@127.0.0.1:1/0") as refused:
            enqueue(settings)
        assert "FLUJO_BROKER_URL" in refused.value.suggestion
        assert SECRET not in f"{refused.value}"


def test_a_database_that_does_not_answer_is_told_at_once(site):
    """M-001: as for the broker."""
    settings = site.settings.with_services(f"postgresql://ana:{SECRET}@127.0.0.1:1/shop", site.settings.broker())
    for enqueue in (enqueue_fine, enqueue_fine_async):
        with pytest.raises(ServiceUnreachable, match=r"postgresql://ana:\*\*\*@127.0.0.1:1/shop") as refused:
            enqueue(settings)
        assert "FLUJO_DATABASE_URL" in refused.value.suggestion
        assert SECRET not in f"{refused.value}"


@pytest.fixture
def settings(services, site):
    """Settings that name a database without tables."""
    url = fresh_database(services)
    yield site.settings.with_services(url, site.settings.broker())
    drop_database(services, url)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_database_without_tables_is_refused(settings, is_async):
    """U-20, house §9: with what to do."""
    with pytest.raises(SchemaVersionError, match="no flujo tables") as refused:
        (enqueue_fine_async if is_async else enqueue_fine)(settings)
    assert "flujo migrate" in refused.value.suggestion


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("statement", "way_out"),
    [
        ("INSERT INTO flujo_schema_version (version, name, oldest) VALUES (99, 'later', 99)", "upgrade flujo-worker"),
        ("DELETE FROM flujo_schema_version", "flujo migrate"),
        ("UPDATE flujo_schema_version SET name = 'engine'", "new, empty database"),
    ],
    ids=["newer", "older", "before 0.1"],
)
def test_a_database_of_another_version_is_refused(settings, is_async, statement, way_out):
    """House §9: neither written to nor read from, newer or older."""
    migrate(settings.database())
    with psycopg.connect(settings.database(), autocommit=True) as connection:
        connection.execute(statement)
        with pytest.raises(SchemaVersionError, match="the database's schema is") as refused:
            (enqueue_fine_async if is_async else enqueue_fine)(settings)
        assert way_out in refused.value.suggestion
        assert connection.execute("SELECT count(*) FROM flujo_runs").fetchone() == (0,)


def enqueue_fine(settings):
    with FlujoClient(settings) as client:
        client.enqueue(fine, "in")


def enqueue_fine_async(settings):
    async def enqueue():
        async with AsyncFlujoClient(settings) as client:
            await client.enqueue(fine, "in")

    asyncio.run(enqueue())
