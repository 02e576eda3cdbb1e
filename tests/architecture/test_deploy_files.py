"""The Procfile, the compose file and the image name every process type, alike (M-003)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flujo_client.cli.main import _OPERATORS
from flujo_client.config import ConfigManager, Settings

ROOT = Path(__file__).parents[2]
TYPES = {"worker", "coordinator", "beat", "migrate"}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines()


def procfile():
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return {name: command.split() for name, command in (line.split(": ", 1) for line in lines)}


def test_the_procfile_names_every_process_type():
    assert procfile().keys() == TYPES
    assert all(command[:1] == ["flujo"] and command[1] in _OPERATORS for command in procfile().values())


def test_compose_starts_the_same_processes_with_the_same_commands():
    assert SERVICES.keys() == TYPES | {"postgres", "redis"}
    assert {name: SERVICES[name]["command"] for name in TYPES} == procfile()


def test_the_queues_are_the_ones_that_are_published_to():
    own = Settings().worker
    asked = {name: command[command.index("-Q") + 1] for name, command in procfile().items() if "-Q" in command}
    assert asked == {"worker": own.attempts_queue, "coordinator": own.control_queue}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_process_waits_for_what_it_needs(name):
    waits = {other: said["condition"] for other, said in SERVICES[name]["depends_on"].items()}
    expected = {"migrate": "service_completed_successfully", "redis": "service_healthy"}
    assert waits == ({"postgres": "service_healthy"} if name == "migrate" else expected)
    assert waits.keys() <= SERVICES.keys()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_that_stays_has_a_health_check(name):
    check = SERVICES[name]["healthcheck"]
    assert check == {"disable": True} if name == "migrate" else check["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == ("no" if name == "migrate" else "unless-stopped")


def test_the_environment_is_one_that_is_read():
    values = {name: value for name, value in SERVICES["worker"]["environment"].items() if name.startswith("FLUJO_")}
    settings = ConfigManager(environ=values).settings()
    assert settings.allowed_imports == ("examples", "flujo_client", "flujo_worker.demo")
    assert settings.broker_url == "redis://redis:6379/0"


def test_services_are_not_open_to_the_network_and_redis_keeps_its_messages():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert SERVICES["redis"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    assert SERVICES["postgres"]["image"] == "postgres:18"


def test_a_worker_has_time_to_finish_what_it_runs():
    assert float(SERVICES["worker"]["stop_grace_period"].rstrip("s")) > Settings().agents.agent_timeout_s


def test_the_image_is_built_from_what_is_there_and_runs_as_nobody_special():
    assert (ROOT / SERVICES["worker"]["build"]["dockerfile"]).is_file()
    copied = [
        name for line in DOCKERFILE if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    last_stage = DOCKERFILE[max(number for number, line in enumerate(DOCKERFILE) if line.startswith("FROM ")) :]
    assert [line for line in last_stage if line.startswith("USER ")] == ["USER 10001"]


def test_nothing_else_is_sent_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        name for line in DOCKERFILE if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    }
    assert "*" in lines
    assert allowed == copied
