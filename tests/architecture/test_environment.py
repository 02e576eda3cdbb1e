"""Only `flujo_client/config/manager.py` reads the environment, and `flujo.toml` through `toml_file.py` (M-045). What comes near is named here."""

import ast
from pathlib import Path

import pytest
from for_each import for_each

from flujo_client.config.manager import _FOREIGN

ROOT = Path(__file__).parents[2]
MODULES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in ("flujo_client", "flujo_worker")
    for path in sorted((ROOT / package).rglob("*.py"))
}

READING = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "expandvars", "expanduser"}
LIBRARIES = {"tomllib", "tomli", "tomlkit", "dotenv", "environs", "decouple", "pydantic_settings", "configparser"}
STARTING = {"system", "popen", "execv", "execl", "execvp", "spawnv", "posix_spawn", "fork", "forkpty"}

ALLOWED = {
    "flujo_client/config/manager.py": {"environ"},
    "flujo_client/config/toml_positions.py": {"tomllib"},
    # prometheus_client reads the folder of its multiprocess mode from there, and has no other way.
    "flujo_worker/observe/metrics.py": {"environ"},
    # Options of the command line that click reads.
    "flujo_client/cli/inputs.py": {"envvar FLUJO_INPUT"},
    "flujo_client/cli/main.py": {"envvar FLUJO_DEBUG"},
    "flujo_client/cli/timeouts.py": {"envvar FLUJO_LENS_TIMEOUT"},
    "flujo_worker/cli/up.py": {"envvar FLUJO_UI"},
    "flujo_worker/cli/chaos.py": {"envvar FLUJO_CHAOS_URL", "envvar FLUJO_CHAOS_BROKER"},
    # Workers get their environment from ConfigManager.
    "flujo_client/embedded/local.py": {"subprocess with env"},
    "flujo_worker/chaos/network.py": {"subprocess with env"},
    # The programs of Linux that set up a network or mount a disk read nothing of ours.
    "flujo_worker/chaos/namespaces.py": {"subprocess", "which"},
    "flujo_worker/chaos/small_disk.py": {"which"},
    "flujo_worker/recovery/child_processes.py": {"subprocess with env"},
    # Its forks have its environment, which the worker gave it.
    "flujo_worker/processes/fork_server.py": {"subprocess"},
    # `flujo dev env` starts its user's command with two variables more.
    "flujo_client/cli/settings.py": {"environ"},
    # `flujo run --watch` starts the command that its user started, as it was started.
    "flujo_client/cli/watching.py": {"subprocess"},
    # The parent of a worker forks it; the code of a folder is read in a process with the environment of workers.
    "flujo_worker/cli/supervise.py": {"subprocess"},
    "flujo_client/cli/runs_diff.py": {"subprocess with env"},
    # Durability engines of others run in processes of the kit's own.
    "flujo_worker/testing/durability/command.py": {"environ", "subprocess with env"},
    "flujo_worker/testing/durability/job.py": {"environ"},
    # Postgres and Redis read nothing of ours; they are looked for on PATH, and inherit what is there.
    "flujo_client/embedded/process.py": {"subprocess"},
    "flujo_client/embedded/redis.py": {"subprocess", "which"},
}


def readings(source: str) -> set[str]:
    """Name every way in which `source` comes near the environment or a file of settings."""
    return {found for node in ast.walk(ast.parse(source)) for found in near(node)}


def near(node):
    if isinstance(node, ast.Attribute):
        yield from READING & {node.attr}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from READING & {node.value}  # getattr(os, "environ")
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
        yield from (READING & names) | (LIBRARIES & {name.partition(".")[0] for name in names})
    if isinstance(node, ast.Call):
        yield from near_call(node)


def near_call(call):
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "envvar" in keywords:
        yield f"envvar {ast.literal_eval(keywords['envvar'])}"
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return
    module, name = call.func.value.id, call.func.attr
    if module == "subprocess" or name.startswith("create_subprocess") or (module == "os" and name in STARTING):
        yield "subprocess with env" if "env" in keywords else "subprocess"
    if (module, name) == ("shutil", "which"):
        yield "which"


@for_each({module: (module,) for module in MODULES})
def test_nothing_else_reads_the_environment(module):
    assert readings(MODULES[module]) == ALLOWED.get(module, set()), f"{module}: ask ConfigManager instead"


def test_variables_that_click_reads_are_not_refused_as_unknown():
    named = {use.split()[1] for uses in ALLOWED.values() for use in uses if use.startswith("envvar ")}
    assert all(map(_FOREIGN.fullmatch, named))


@pytest.mark.parametrize(
    "planted",
    [
        "import os\nos.environ['X']",
        "import os as o\no.getenv('X')",
        "from os import environ",
        "import os\ngetattr(os, 'environ')",
        "import posix\nposix.environ",
        "import tomllib",
        "from dotenv import load_dotenv",
        "from os.path import expandvars",
        "import click\nclick.option('--x', envvar='X')",
        "import subprocess\nsubprocess.run(['env'])",
        "import os\nos.system('env')",
    ],
)
def test_a_planted_reading_is_caught(planted):
    assert readings(planted)
