"""The units of `deploy/systemd`, read as systemd reads them."""

import shlex
import shutil
import subprocess

import pytest
from deployed import PROCESSES, ROOT, STOPPING_S, read_command, read_environment

FOLDER = ROOT / "deploy/systemd"
FLUJO = "/opt/flujo/bin/flujo"
UNITS = {
    "worker": "flujo-worker@.service",
    "coordinator": "flujo-coordinator.service",
    "beat": "flujo-beat.service",
    "migrate": "flujo-migrate.service",
}
KNOWN = {
    "Unit": "Description PartOf After Wants StartLimitIntervalSec",
    "Service": "Type User Group WorkingDirectory EnvironmentFile RuntimeDirectory Environment ExecStart Restart RestartSec "
    "RemainAfterExit KillSignal KillMode TimeoutStopSec NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem "
    "ProtectHome PrivateTmp PrivateDevices ProtectClock ProtectControlGroups ProtectHostname ProtectKernelLogs "
    "ProtectKernelModules ProtectKernelTunables ProtectProc RestrictAddressFamilies RestrictNamespaces RestrictRealtime "
    "RestrictSUIDSGID LockPersonality SystemCallArchitectures SystemCallFilter UMask",
    "Install": "WantedBy",
}

each_unit = pytest.mark.parametrize("name", UNITS)


def unit(file):
    """Sections, each with its directives."""
    sections, section = {}, None
    for line in (FOLDER / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert name not in section, line
            section[name] = value
    return sections


def service(name):
    return unit(UNITS[name])["Service"]


def test_every_unit_is_here():
    assert {file.name for file in FOLDER.iterdir()} == {*UNITS.values(), "flujo.target", "flujo.env.example"}


@pytest.mark.parametrize("file", [*UNITS.values(), "flujo.target"])
def test_every_directive_is_one_that_systemd_knows(file):
    for section, directives in unit(file).items():
        assert directives.keys() <= set(KNOWN[section].split())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_them(tmp_path):
    """It wants the program to be there, and instances where a unit is a template."""
    for file in [*UNITS.values(), "flujo.target"]:
        text = (FOLDER / file).read_text(encoding="utf-8").replace(FLUJO, shutil.which("true"))
        (tmp_path / file.replace("@", "@1")).write_text(text)
    units = [str(file) for file in tmp_path.iterdir()]
    made = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    assert (made.returncode, [line for line in made.stderr.splitlines() if "flujo" in line]) == (0, [])


@each_unit
def test_every_process_has_its_command(name):
    command = shlex.split(service(name)["ExecStart"])
    assert command == [FLUJO, *PROCESSES[name][1:]]
    read_command(PROCESSES[name])


def test_the_environment_is_one_that_is_read():
    lines = (FOLDER / "flujo.env.example").read_text(encoding="utf-8").splitlines()
    assert read_environment(dict(line.split("=", 1) for line in lines if not line.startswith("#"))).mode == "production"


@pytest.mark.parametrize("name", ["worker", "coordinator", "beat"])
def test_every_process_has_a_heartbeat_of_its_own(name):
    """Two that share a file would answer for each other."""
    variable, _, file = service(name)["Environment"].partition("=")
    assert read_environment({variable: file}).worker.heartbeat_file
    assert file == f"%t/{service(name)['RuntimeDirectory']}/alive"
    assert len({service(other).get("RuntimeDirectory") for other in UNITS}) == len(UNITS)


@pytest.mark.parametrize("name", ["worker", "coordinator"])
def test_a_worker_has_time_to_finish_and_only_it_is_told(name):
    """A child of a prefork pool that is sent SIGTERM itself loses its step."""
    asked = service(name)
    assert (asked["KillSignal"], asked["KillMode"]) == ("SIGTERM", "mixed")
    assert float(asked["TimeoutStopSec"]) >= STOPPING_S


@each_unit
def test_what_ended_is_started_again_and_allowed_no_more_than_it_needs(name):
    asked = service(name)
    assert asked["Restart"] == ("on-failure" if name == "migrate" else "always")
    hardened = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "User": "flujo"}
    assert hardened.items() <= asked.items()


def test_the_target_wants_units_that_there_are():
    wanted = unit("flujo.target")["Unit"]["Wants"].split()
    assert {name.replace("@1", "@").replace("@2", "@") for name in wanted} == set(UNITS.values()) - {UNITS["migrate"]}
    assert all("flujo-migrate.service" in unit(UNITS[name])["Unit"]["After"] for name in UNITS if name != "migrate")
