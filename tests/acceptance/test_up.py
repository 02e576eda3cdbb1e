"""`flujo up`, as a person starts and stops it."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import takewhile

import psycopg
import pytest

from flujo_client import FlujoClient, Settings
from flujo_client.embedded import running
from flujo_client.gateway import requests
from tests.support.fleet import wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]

SERVICES = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL")


def is_there(search):
    """Looked for ten times a second: what is waited for takes longer, and each look costs a process."""
    time.sleep(0.1)
    return subprocess.run(search, capture_output=True, check=False).returncode == 0


def test_an_interrupt_while_it_starts_ends_it_in_order(server_folder):
    """Ctrl-C reaches every process of the terminal, so the migration under way must not report it as its failure."""
    alone = {name: text for name, text in os.environ.items() if not name.startswith("FLUJO_") and name not in SERVICES}
    command = [sys.executable, "-m", "flujo_worker", "up"]
    with subprocess.Popen(
        command, cwd=server_folder, env=alone, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as up:
        # Found by its command line, so it has been through exec and its session is its own.
        migration = ["pgrep", "-P", str(up.pid), "-f", "flujo_worker migrate"]
        wait_until(lambda: is_there(migration), what="a migration")
        os.killpg(up.pid, signal.SIGINT)
        talk = up.communicate(timeout=60)[1]
    assert (up.returncode, "CONFIGURATION" in talk) == (0, False), talk
    assert subprocess.run(["pgrep", "-f", str(server_folder)], capture_output=True, check=False).stdout == b""


def test_an_embedded_service_that_dies_is_told_and_ends_all_of_it(server_folder):
    """As a runner of Procfiles does: with exit code 1, the workers stopped in order, and nothing left running."""
    alone = {name: text for name, text in os.environ.items() if not name.startswith("FLUJO_") and name not in SERVICES}
    command = [sys.executable, "-m", "flujo_worker", "up", "--workers", "1"]
    with subprocess.Popen(command, cwd=server_folder, env=alone, stderr=subprocess.PIPE, text=True) as up:
        said = list(takewhile(lambda line: line != "up; Ctrl-C stops everything\n", up.stderr))
        assert up.poll() is None, said
        assert any(line.startswith("redis     redis://:***@127.0.0.1:") for line in said)
        assert (server_folder / ".flujo" / ".gitignore").read_text() == "*\n"
        with subprocess.Popen(command, cwd=server_folder, env=alone, stderr=subprocess.PIPE, text=True) as second:
            joined = list(takewhile(lambda line: line != "up; Ctrl-C stops what this command added\n", second.stderr))
            second.send_signal(signal.SIGINT)
            goodbye = second.communicate(timeout=60)[1]
        assert f"the services of this folder already run under process {up.pid}" in "".join(joined)
        assert (second.returncode, goodbye) == (0, "stopped; runs continue with the next worker\n")
        os.kill(running(server_folder / ".flujo").redis_pid, signal.SIGKILL)
        talk = up.communicate(timeout=90)[1]
    assert up.returncode == 1, (said, talk)
    assert f"embedded Redis was killed by SIGKILL; the end of {server_folder}" in talk
    assert "Ready to accept connections" in talk
    left = subprocess.run(["pgrep", "-f", f"{server_folder}|parent={up.pid}( |$)"], capture_output=True, check=False)
    assert left.stdout == b""


def test_it_runs_a_beat_that_has_the_health_check_made(tmp_path, database_url, redis_url):
    """M-012: as often as the settings say; a beat that dies is replaced, and ends with the rest."""
    own = {"FLUJO_DATABASE_URL": database_url, "FLUJO_BROKER_URL": redis_url, "FLUJO_HEALTH_EVERY_S": "1"}
    command = [sys.executable, "-m", "flujo_worker", "up", "--workers", "1"]
    with (
        subprocess.Popen(command, cwd=tmp_path, env=os.environ | own, stderr=subprocess.DEVNULL) as up,
        psycopg.connect(database_url, autocommit=True) as onlooker,
    ):
        try:
            first = wait_until(lambda: beats(up.pid), what="a beat")
            wait_until(lambda: reports(onlooker) > 0, what="a report")
            os.kill(first[0], signal.SIGKILL)
            second = wait_until(lambda: [pid for pid in beats(up.pid) if pid not in first], what="another beat")
            made = reports(onlooker)
            wait_until(lambda: reports(onlooker) > made, what="another report")
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(60)
        assert up.returncode == 0
        with pytest.raises(ProcessLookupError):
            os.kill(second[0], 0)


def test_changed_code_restarts_the_workers(tmp_path, database_url, redis_url, monkeypatch):
    """With `--watch`: those that begin have the new code, those that end finish what they run, and `up` means that one takes work."""
    code = tmp_path / "watched_shop.py"
    code.write_text(WATCHED.format("old"))
    monkeypatch.syspath_prepend(tmp_path)
    own = {"FLUJO_DATABASE_URL": database_url, "FLUJO_BROKER_URL": redis_url}
    command = [sys.executable, "-m", "flujo_worker", "up", "--workers", "1", "--watch"]
    with (
        subprocess.Popen(command, cwd=tmp_path, env=os.environ | own, stderr=subprocess.PIPE, text=True) as up,
        FlujoClient(Settings(database_url=database_url, broker_url=redis_url)) as client,
    ):
        try:
            told = list(takewhile(lambda line: line != "up; Ctrl-C stops everything\n", up.stderr))
            assert "watching  1 file\n" in told
            [old] = workers(up.pid)
            assert taking_work(client) == {old}
            unfinished = client.enqueue("watched_shop:pipeline", [str(tmp_path / "begun"), 2])
            wait_until((tmp_path / "begun").exists, what="the old worker's step")
            code.write_text(WATCHED.format("new"))
            assert up.stderr.readline() == "changed: watched_shop.py; restarting the workers\n"
            assert unfinished.result(timeout=60).output == "old"
            wait_until(lambda: old not in taking_work(client), what="the old worker still takes work")
            run = client.enqueue("watched_shop:pipeline", [str(tmp_path / "again"), 0])
            assert run.result(timeout=60).output == "new"
        finally:
            up.send_signal(signal.SIGINT)
            goodbye = up.communicate(timeout=60)[1]
        assert (up.returncode, goodbye) == (0, "stopped; runs continue with the next worker\n")


def taking_work(client):
    return {each.pid for each in client.ask(requests.workers()) if each.is_live and not each.is_stopping}


WATCHED = """
import time
from pathlib import Path
from flujo_client import Pipeline, Step

def work(given):
    Path(given[0]).touch()
    time.sleep(given[1])
    return "{}"

pipeline = Pipeline([Step("work", work)])
"""


def test_workers_of_other_services_log_json_lines_on_its_stdout(tmp_path, database_url, redis_url, monkeypatch):
    """From the first byte, with a failed run as an error, and nothing of Celery's banner, of retries, or of what an import prints."""
    (tmp_path / "noisy_shop.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"FLUJO_DATABASE_URL": database_url, "FLUJO_BROKER_URL": redis_url}
    command = [sys.executable, "-m", "flujo_worker", "up", "--workers", "1"]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | own, stdout=out, stderr=subprocess.PIPE, text=True
        ) as up,
        FlujoClient(Settings(database_url=database_url, broker_url=redis_url)) as client,
    ):
        try:
            told = list(takewhile(lambda line: line != "up; Ctrl-C stops everything\n", up.stderr))
            run = client.enqueue("noisy_shop:pipeline", 1)
            assert run.result(timeout=60).run_status == "failed"
        finally:
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
    assert "workers   1 and a beat, logging to stdout\n" in told
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [failed] = [line for line in lines if line["event"] == "run failed"]
    assert (failed["level"], failed["run"], failed["error"]) == ("error", run.id, "OutOfStock")
    assert [line["event"] for line in lines if line.get("logger") == "stdout" or "noisy" in line["event"]] == [
        "a noisy import"
    ]
    assert [line for line in lines if "published again" in line["event"]] == []


NOISY = """
from flujo_client import Pipeline, Step, StepConfig

print("a noisy import")

class OutOfStock(Exception):
    pass

def fails(given):
    raise OutOfStock("none left")

pipeline = Pipeline([Step("fails", fails, config=StepConfig(max_retries=1))])
"""


def workers(parent):
    """The workers that a process has started."""
    found = subprocess.run(
        ["pgrep", "-P", str(parent), "-f", "flujo_worker worker"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def beats(parent):
    """The beats that a process has started, once each is through exec."""
    found = subprocess.run(
        ["pgrep", "-P", str(parent), "-f", "flujo_worker beat"], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def reports(onlooker):
    """How many health reports there are; none as long as nothing is migrated."""
    if onlooker.execute("SELECT to_regclass('flujo_health_reports')").fetchone() == (None,):
        return 0
    return onlooker.execute("SELECT count(*) FROM flujo_health_reports").fetchone()[0]
