"""`docker-compose.yml`, carried out without containers: its commands as processes, in its order, with its environments and health checks.

What a container would change is changed here: service names become the addresses of the test's servers, `/run/flujo` a folder of each process.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import yaml
from psycopg.conninfo import conninfo_to_dict

from flujo_client import ConfigManager, FlujoClient
from flujo_client.embedded import postgres as embedded_postgres
from flujo_client.embedded import redis as embedded_redis
from flujo_client.gateway import requests
from tests.support.fleet import wait_until
from tests.support.services import drop_database, fresh_database, fresh_redis

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
STAYING = [name for name in OURS if SERVICES[name]["restart"] != "no"]
WRITABLE = "/run/flujo"
_VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
SECRETS = {"POSTGRES_PASSWORD": "5" * 64, "FLUJO_SIGNING_KEYS": f"1:{'a' * 64}"}
"""What the head of the file has its user generate."""


def interpolated(text):
    """As compose does, with no variable set but the secrets."""
    return _VARIABLE.sub(lambda found: SECRETS.get(found[1], found[2] or ""), text)


def seconds(text):
    return float(text.removesuffix("s"))


class Composition:
    """The processes of the file's services, on servers that stand for its databases."""

    def __init__(self, services, folder):
        self.folder, self.stack = folder, ExitStack()
        self.database_url = fresh_database(services)
        self.broker_url = fresh_redis(services)
        self.processes = {}

    def environment(self, name):
        """The service's own environment and nothing of this process's but what finds the programs."""
        given = {key: interpolated(value) for key, value in SERVICES[name]["environment"].items()}
        database, broker = urlsplit(given["FLUJO_DATABASE_URL"]), urlsplit(given["FLUJO_BROKER_URL"])
        own = {key: interpolated(value) for key, value in SERVICES["postgres"]["environment"].items()}
        assert (database.hostname, database.port, broker.hostname, broker.port) == ("postgres", 5432, "redis", 6379)
        assert (database.username, database.password, database.path) == (
            own["POSTGRES_USER"],
            own["POSTGRES_PASSWORD"],
            f"/{own['POSTGRES_DB']}",
        )
        there = {"FLUJO_DATABASE_URL": self.database_url, "FLUJO_BROKER_URL": self.broker_url}
        found = {key: self.placed(name, value) for key, value in {**given, **there}.items()}
        programs = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        return {**found, "PATH": programs, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def placed(self, name, text):
        """A path below the folder that the container may write to is one of this process's own."""
        own = self.folder / name
        own.mkdir(exist_ok=True)
        return text.replace(WRITABLE, str(own))

    def start(self, name):
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            SERVICES[name]["command"],
            env=self.environment(name),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.stack.callback(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        self.processes[name] = process
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def is_healthy(self, name):
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [self.placed(name, part) for part in command]
        done = subprocess.run(
            command,
            env=self.environment(name),
            cwd=ROOT,
            capture_output=True,
            timeout=seconds(SERVICES[name]["healthcheck"]["timeout"]),
            check=False,
        )
        return done.returncode == 0


@pytest.fixture(scope="module")
def composition(services, tmp_path_factory):
    made = Composition(services, tmp_path_factory.mktemp("compose"))
    with made.stack:
        yield made
    drop_database(services, made.database_url)


def test_every_service_does_its_part_and_stops_in_its_time(composition):
    """M-003, SYS-30: migrate ends well and before all others, these become healthy, a blueprint goes through, SIGTERM ends them."""
    migrate = composition.start("migrate")
    assert migrate.wait(timeout=120) == 0, composition.log("migrate")
    assert {name for name in OURS if "migrate" in SERVICES[name]["depends_on"]} == set(STAYING)
    for name in STAYING:
        composition.start(name)
    for name in STAYING:
        check = SERVICES[name]["healthcheck"]
        patience_s = seconds(check["start_period"]) + check["retries"] * seconds(check["interval"])
        wait_until(
            lambda name=name: composition.is_healthy(name), patience_s, what=lambda name=name: composition.log(name)
        )

    (composition.folder / "letters").mkdir()
    (composition.folder / "letters" / "a.txt").write_text("It is broken.")
    settings = ConfigManager(environ=composition.environment("worker")).settings()
    with FlujoClient(settings) as client:
        assert {queue for worker in client.ask(requests.workers()) for queue in worker.queues} == {
            settings.worker.attempts_queue,
            settings.worker.control_queue,
        }
        run = client.enqueue(str(ROOT / "examples/support_triage.yaml"), str(composition.folder / "letters"))
        output = run.result(timeout=60).raise_for_status().output
    assert output["desk"] == {"fault": ["a.txt: Ticket of urgency 2: It is broken."]}

    for name in STAYING:
        composition.processes[name].send_signal(signal.SIGTERM)
    for name in STAYING:
        grace_s = seconds(SERVICES[name]["stop_grace_period"])
        assert composition.processes[name].wait(timeout=grace_s) == 0, composition.log(name)
        assert not composition.is_healthy(name)


def test_the_command_of_redis_is_one_that_a_server_takes(tmp_path):
    """With the settings that keep messages: no eviction, and a log of what was written."""
    _, *options = SERVICES["redis"]["command"]
    [server, *_] = [found for kind, found in embedded_redis._candidates() if kind != "fakeredis"]
    port = embedded_redis._free_port()
    command = [str(server), *options, "--port", str(port), "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        assert SERVICES["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
        wait_until(lambda: answers(client))
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def test_the_health_check_of_postgres_is_one_that_its_program_takes(services):
    """`pg_isready`, from the same release as the embedded server."""
    kind, program, *arguments = SERVICES["postgres"]["healthcheck"]["test"]
    assert kind == "CMD"
    address = conninfo_to_dict(services.database_url)
    command = [str(embedded_postgres.find_binaries() / program), *arguments]
    there = {"PGHOST": str(address["host"]), "PGPORT": str(address.get("port", 5432))}
    assert subprocess.run(command, env=there, capture_output=True, check=False).returncode == 0
    nowhere = {"PGHOST": "127.0.0.1", "PGPORT": str(embedded_redis._free_port())}
    assert subprocess.run(command, env=nowhere, capture_output=True, check=False).returncode != 0
