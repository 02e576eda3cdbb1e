"""`make durability-beside`: the kit on each engine, as a table and as JSON."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

from flujo_client.embedded import Embedded
from flujo_worker.testing.durability import CASES, CommandEngine, judge
from tests.bench.peers.installing import install, version
from tests.chaos_beside.tools import commit
from tests.durability.ours import FlujoEngine
from tests.support.fleet import BRISK, Site, wait_until
from tests.support.services import temporary_folder

ROOT = Path(__file__).parents[2]
MCP = "pydantic-ai-slim[mcp]"


class Other(NamedTuple):
    """Another engine.

    Attributes:
        name: for people.
        packages: what is installed, the first of which has the version that is shown, without its extras.
        has_server: whether it needs a server of its own, which is Prefect's.
    """

    name: str
    packages: tuple[str, ...]
    has_server: bool = False

    @property
    def script(self):
        return Path(__file__).with_name(f"side_{self.name.lower()}.py")


OTHERS = (
    Other("DBOS", ("dbos", "pydantic-ai-slim[dbos,mcp]", "psycopg[binary]")),
    Other("Prefect", ("prefect", "pydantic-ai-slim[prefect,mcp]"), has_server=True),
    Other("pgtask", ("pgtask", "pydantic-ai-harness[pgtask]", MCP, "psycopg[binary]")),
)


def main():
    given = arguments()
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        "engines": [],
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(temporary_folder()))
        services = stack.enter_context(Embedded(folder / "services"))
        for name in ("Flujo Worker", *(other.name for other in OTHERS)):
            if given.only and name not in given.only:
                continue
            with engine_called(name, services, folder, given.environments) as (engine, versions):
                if engine is not None:
                    results["engines"].append({"name": name, "versions": versions, "cases": judged(engine, given.case)})
            if given.json:
                given.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


def arguments():
    parser = argparse.ArgumentParser(prog="make durability-beside")
    parser.add_argument("--only", action="append", help="an engine, repeatable")
    parser.add_argument("--case", action="append", help="how the names of the cases begin, repeatable")
    parser.add_argument("--environments", type=Path, help="keep the engines' environments in this folder")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


@contextmanager
def engine_called(name, services, folder, environments):
    """Yield an engine, and the versions of what it needs; nothing, and say why, if it does not install from wheels."""
    where = (environments or folder) / name.lower().replace(" ", "-")
    if name == "Flujo Worker":
        with ExitStack() as stack:
            site_folder = folder / "site"
            site_folder.mkdir()
            site = stack.enter_context(Site(services, site_folder, worker=BRISK | {"max_lost": 20}))
            yield ours(site, where)
        return
    [other] = [each for each in OTHERS if each.name == name]
    if not (where / "bin" / "python").exists() and (done := install(where, other.packages)).returncode:
        print(f"{name} does not install from wheels:\n{done.stderr.strip()}", file=sys.stderr)
        yield None, {}
        return
    python, jobs = where / "bin" / "python", folder / where.name
    jobs.mkdir(exist_ok=True)
    with server(python, jobs) if other.has_server else database(services, where.name) as environment:
        names = [each.partition("[")[0] for each in other.packages if not each.startswith("psycopg")]
        versions = {each: version(python, each) for each in names}
        yield CommandEngine([str(python), str(other.script)], jobs, environment), versions


def ours(site, where):
    """Return our engine, whose workers also find MCP's packages if they install from wheels, and its versions."""
    if not where.exists() and (done := install(where, (MCP,))).returncode:
        print(f"MCP does not install from wheels:\n{done.stderr.strip()}", file=sys.stderr)
    packages = next(where.glob("lib/*/site-packages"), where)
    sys.path.append(str(packages))
    versions = {"commit": commit(), "pydantic-ai-slim": version(Path(sys.executable), "pydantic-ai-slim")}
    return FlujoEngine(site, packages), versions


@contextmanager
def database(services, name):
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE kit_{name}")
    yield {"DATABASE_URL": urlsplit(services.database_url)._replace(path=f"/kit_{name}").geturl()}


@contextmanager
def server(python, folder):
    """Run Prefect's server."""
    port = "42871"
    environment = {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    command = [str(python.with_name("prefect")), "server", "start", "--port", port, "--no-ui"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            wait_until(lambda: is_up(environment["PREFECT_API_URL"]), 90)
            yield environment
        finally:
            process.terminate()
            process.wait()


def is_up(url):
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        return urlopen(f"{url}/health", timeout=5).status == 200
    except (URLError, OSError):
        return False


def judged(engine, wanted):
    found = []
    for case in CASES:
        if wanted is None or case.name.startswith(tuple(wanted)):
            verdict = judge(engine, case)
            print(f"{case.name}: {verdict} {verdict.detail}", file=sys.stderr)
            found.append({"case": case.name, "verdict": str(verdict), "detail": verdict.detail})
    return found


def table(results):
    """Draw the results as a Markdown table."""
    engines = results["engines"]
    versions = [", ".join(f"{name} {value}" for name, value in each["versions"].items()) for each in engines]
    lines = [["", *(each["name"] for each in engines)], ["---"] * (len(engines) + 1), ["version", *versions]]
    for number, case in enumerate(engines[0]["cases"] if engines else ()):
        lines.append([case["case"], *(each["cases"][number]["verdict"] for each in engines)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
