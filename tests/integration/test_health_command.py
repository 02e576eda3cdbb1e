"""`flujo dev health-check`: its options, what it prints and writes, and how it ends (M-172, M-184, M-185, §2.8)."""

import csv
import json

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from tests.support.fleet import Site
from tests.support.health_traces import plant, plant_run

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """A database with the trace set, and no one at work."""
    with Site(services, tmp_path_factory.mktemp("site")) as site:
        with site.connection() as connection:
            plant(connection)
        yield site


@pytest.fixture
def checked(site, tmp_path, monkeypatch):
    """Call the command in its own folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0, **variables):
        environment = {**site.settings.as_environment(), "COLUMNS": "80", **variables}
        told = CliRunner().invoke(cli, ["dev", "health-check", *arguments], env=environment)
        assert told.exit_code == code, told.output
        return told

    return call


def test_it_prints_totals_trends_lists_and_advice(checked):
    """§2.8: and says on stdout what is data, on stderr nothing."""
    told = checked("--since-hours", "24", "--trend-buckets", "4")
    for title in ("machine", "AROS", "trend", "steps", "models", "transforms", "recommendations"):
        assert f"\n{title}\n" in told.stdout
    assert told.stderr == ""
    assert max(map(len, told.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--output", "-"], ["--export", "json", "--output", "-"], ["--json"]])
def test_stdout_is_json_and_nothing_else(checked, tmp_path, arguments):
    """M-185."""
    told = checked("--since-hours", "24", *arguments)
    assert json.loads(told.stdout)["totals"]["coercions"] == 13
    assert (told.stderr, list(tmp_path.iterdir())) == ("", [])


def test_json_has_the_keys_of_the_seed(checked):
    """M-184, §2.8."""
    report = json.loads(checked("--since-hours", "24", "--trend-buckets", "3", "--json").stdout)
    keys = [
        "version",
        "generated_at",
        "totals",
        "stages",
        "steps",
        "models",
        "step_stages",
        "model_stages",
        "transforms",
        "trend",
    ]
    assert set(keys) <= report.keys()
    assert {"last_half", "prev_half", "buckets"} <= report["trend"].keys()
    bucket = ["index", "start", "end", "coercions", "stages", "step_stages", "model_stages"]
    assert all(set(bucket) <= each.keys() for each in report["trend"]["buckets"])
    assert [each["index"] for each in report["trend"]["buckets"]] == [0, 1, 2]


def test_a_report_is_written_where_nothing_else_is_said(checked, tmp_path):
    """M-184: `aros_health_report.json`; the text is printed besides, and where it went is talk."""
    told = checked("--since-hours", "24", "--export", "json")
    assert json.loads((tmp_path / "aros_health_report.json").read_text())["version"] == "1"
    assert told.stdout.startswith("health check")
    assert told.stderr == "wrote aros_health_report.json\n"


@pytest.mark.parametrize("output", ["out.csv", "out.json", "out", "./out.csv"])
def test_tables_are_three_files(checked, tmp_path, output):
    """M-184: each is read back as it was meant, whatever is in it."""
    checked("--since-hours", "24", "--export", "csv", "--output", output)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out_models.csv", "out_steps.csv", "out_transforms.csv"]
    with (tmp_path / "out_steps.csv").open(newline="") as file:
        rows = {row["step"]: row for row in csv.DictReader(file)}
    assert (rows["read"]["coercions"], rows["read"]["extract"]) == ("7", "4")
    assert "'=write()" in rows


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--export", "csv", "--output", "-"], "stdout cannot hold"),
        (["--json", "--export", "json"], "leave out --export"),
        (["--output", "no/where.json"], "no folder 'no'"),
        (["--stored", "--step", "read"], "cannot be filtered"),
        (["--since-hours", "0"], "0"),
        (["--since-hours", "nan"], "nan is not a number"),
        (["--limit", "0"], "0"),
        (["--export", "xml"], "xml"),
    ],
)
def test_usage(checked, arguments, told):
    """§2.8: refused with 2 before anything is asked, so without a database too."""
    nowhere = {"FLUJO_DATABASE_URL": "postgresql://127.0.0.1:1/no", "FLUJO_BROKER_URL": "redis://127.0.0.1:1/0"}
    assert told in checked(*arguments, code=2, **nowhere).output.replace("\n", " ")


def test_buckets_without_a_window_are_left_out_with_a_note(checked):
    """M-177."""
    told = checked("--limit", "50", "--trend-buckets", "4")
    assert "they divide a window, and no window was given" in " ".join(told.stdout.split())


def test_no_run_in_the_window(checked):
    """M-175: a clear message, and success."""
    told = checked("--since-hours", "0.001")
    assert "there is nothing to report: no run has begun in the last 0.001 hours" in told.stdout


def test_the_broker_is_away(checked):
    """All else is told on what Postgres holds alone; a script is told by the exit code."""
    told = checked("--since-hours", "24", code=1, FLUJO_BROKER_URL="redis://:secret@127.0.0.1:1/0")
    assert told.stdout.startswith("health check warn, 6 runs")
    assert "the broker does not answer" in told.stdout
    assert "secret" not in told.output


def test_messages_are_counted_over_all_priorities(site, checked):
    site.redis.lpush("flujo.attempts", "a", "b")
    site.redis.lpush("flujo.attempts\x06\x166", "c")
    queues = json.loads(checked("--json").stdout)["machine"]["queues"]
    site.redis.delete("flujo.attempts", "flujo.attempts\x06\x166")
    assert queues == {
        "flujo.attempts": {"waiting": 0, "messages": 3},
        "flujo.control": {"waiting": 0, "messages": 0},
    }


def test_nothing_stored_yet(checked):
    """The way out is told."""
    told = checked("--stored", code=1)
    assert "no report is stored yet" in told.stderr
    assert "flujo beat" in told.stderr


def test_the_projects_file_is_read(site, checked, tmp_path):
    """`--project` names the folder; its thresholds count."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/flujo.toml").write_text("[health]\nstuck_s = 10_000_000\n")
    with site.connection() as connection:
        plant_run(connection, "stuck")
        connection.execute("UPDATE flujo_runs SET created_at = now() - interval '1 hour' WHERE id = 'stuck'")
    assert json.loads(checked("--json", code=1).stdout)["machine"]["stuck_runs"]["count"] == 1
    variables = {"FLUJO_HEALTH_STUCK_S": ""}
    assert json.loads(checked("--json", "--project", "shop", **variables).stdout)["machine"]["stuck_runs"]["count"] == 0
    site.rows("DELETE FROM flujo_runs WHERE id = 'stuck' RETURNING id")


def test_names_move_no_terminal(site, checked):
    """Steps and models are named by users and providers."""
    with site.connection() as connection:
        connection.execute("UPDATE flujo_attempts SET step = E'a\\x1b[2Jb' WHERE step = 'watch'")
    assert "\x1b" not in checked("--since-hours", "24").stdout
