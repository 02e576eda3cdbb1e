"""The Procfile, the compose file and the image name every process type, alike (M-003, SYS-01)."""

import re
import subprocess
import tomllib

import click
import pytest
import yaml
from deployed import PROCESSES, ROOT, STOPPING_S, read_command, read_environment, unknown

from flujo_client.config.manager import Settings

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines()
LAST_STAGE = DOCKERFILE[max(number for number, line in enumerate(DOCKERFILE) if line.startswith("FROM ")) :]

# The fields of the compose specification that may stand here.
SERVICE = dict.fromkeys(
    [
        "build",
        "cap_drop",
        "command",
        "depends_on",
        "environment",
        "healthcheck",
        "image",
        "init",
        "ports",
        "read_only",
        "restart",
        "security_opt",
        "stop_grace_period",
        "tmpfs",
        "volumes",
    ]
) | {
    "build": {"context": None, "dockerfile": None},
    "healthcheck": dict.fromkeys(("test", "interval", "timeout", "start_period", "retries", "disable")),
}
DURATION = re.compile(r"\d+s")


def procfile():
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return {name: command.split() for name, command in (line.split(": ", 1) for line in lines)}


def copied():
    """What the image is built from."""
    return {
        name for line in DOCKERFILE if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    }


def test_the_procfile_names_every_process_type_with_its_command():
    """M-003: the one-shot too."""
    assert procfile() == PROCESSES


@pytest.mark.parametrize("name", PROCESSES)
def test_every_command_is_one_that_flujo_takes(name):
    read_command(PROCESSES[name])


def test_a_command_that_flujo_does_not_take_is_seen():
    with pytest.raises(click.UsageError, match="No such option"):
        read_command(["flujo", "worker", "--quues", "x"])


def test_compose_starts_every_process_type_with_its_command():
    assert SERVICES.keys() == PROCESSES.keys() | {"postgres", "redis"}
    assert {name: SERVICES[name]["command"] for name in PROCESSES} == PROCESSES


def test_compose_has_no_field_that_does_not_exist():
    assert COMPOSE.keys() == {"x-flujo", "services", "volumes"}
    assert unknown(SERVICES, dict.fromkeys(SERVICES, SERVICE)) == []
    assert unknown({"worker": {"stop_grace": "9s"}}, dict.fromkeys(SERVICES, SERVICE)) == [".worker.stop_grace"]
    durations = [
        service["healthcheck"].get(name, "0s") for service in SERVICES.values() for name in ("interval", "timeout")
    ]
    assert all(map(DURATION.fullmatch, durations))


def test_the_queues_are_the_ones_that_are_published_to():
    own = Settings().worker
    asked = {name: read_command(command).get("queues") for name, command in PROCESSES.items()}
    assert asked == {"worker": own.attempts_queue, "coordinator": own.control_queue, "beat": None, "migrate": None}


@pytest.mark.parametrize("name", sorted(PROCESSES))
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


@pytest.mark.parametrize("name", ["worker", "coordinator", "beat"])
def test_a_health_check_is_about_that_very_process(name, generated):
    """Issue 8: the file that it looks at is the one that the process touches, in its own folder that it may write to."""
    service = SERVICES[name]
    file = read_command(service["healthcheck"]["test"][1:])["file"]
    assert file == settings_of(name, generated).worker.heartbeat_file
    assert f"{file.parent}:uid=10001,gid=10001,mode=0700" in service["tmpfs"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The secrets that the command at the head of the file generates, as compose reads them."""
    folder = tmp_path_factory.mktemp("compose")
    [command] = re.findall(
        r"^#   (printf .*)$", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    subprocess.run(["sh", "-c", command], cwd=folder, check=True, timeout=60)
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


def filled_in(text, variables):
    """Fill in variables as compose does; raises KeyError for one that is required and not set."""
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda at: variables.get(at[1]) or {"-": at[3]}[at[2]], text)


def settings_of(service, variables):
    given = SERVICES[service]["environment"].items()
    return read_environment({name: filled_in(text, variables) for name, text in given})


def test_it_starts_in_production_mode_with_secrets_that_are_generated(generated):
    """No default password and no key that everyone knows: without the secrets, compose refuses to start."""
    settings = settings_of("worker", generated)
    assert settings.mode == "production"
    assert generated["POSTGRES_PASSWORD"] in settings.database()
    [(_, key)] = settings.keys()
    assert len(key) == 64
    for name in generated:
        with pytest.raises(KeyError):
            settings_of("worker", {each: secret for each, secret in generated.items() if each != name})


def test_the_environment_is_one_that_is_read(generated):
    settings = settings_of("worker", generated)
    assert settings.allowed_imports == ("examples", "flujo_demo")
    assert settings.broker() == "redis://redis:6379/0"


def test_services_are_not_open_to_the_network_and_redis_keeps_its_messages():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert SERVICES["redis"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    assert {path.partition(":")[0] for service in ("postgres", "redis") for path in SERVICES[service]["volumes"]} == (
        COMPOSE["volumes"].keys()
    )


def test_every_image_is_pinned_to_a_release():
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    images += [line.split()[1] for line in DOCKERFILE if line.startswith("FROM ")]
    assert [image for image in images if not re.search(r":\d+\.\d+", image)] == []
    assert SERVICES["postgres"]["image"].startswith("postgres:18.")


def test_a_worker_has_time_to_finish_what_it_runs():
    assert float(SERVICES["worker"]["stop_grace_period"].rstrip("s")) >= STOPPING_S


def test_the_image_is_built_from_what_is_there_and_runs_as_no_one_special():
    assert (ROOT / SERVICES["worker"]["build"]["dockerfile"]).is_file()
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    assert [line for line in LAST_STAGE if line.startswith("USER ")] == ["USER 10001"]
    assert "useradd --uid 10001 " in "\n".join(LAST_STAGE)
    read_command(yaml.safe_load(LAST_STAGE[-1].removeprefix("CMD ")))


def test_the_image_has_the_extras_that_there_are():
    [asked] = re.findall(r"pip install .*'\.\[(.+)\]'", "\n".join(DOCKERFILE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(asked.split(",")) <= project["optional-dependencies"].keys()


def test_nothing_else_is_sent_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
