"""The projects: what is installed, and how each says what became of a run."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from redis.exceptions import RedisError

from tests.bench.peers.installing import install, version
from tests.chaos_beside.steps import STEPS

FLUJO = """
    SELECT metadata ->> 'run', CASE WHEN ended_at IS NULL THEN 'pending' WHEN status = 'succeeded' THEN 'ended' ELSE 'failed' END
    FROM flujo_runs
"""
DBOS = """
    SELECT workflow_uuid, CASE WHEN status IN ('ENQUEUED', 'DELAYED', 'PENDING') THEN 'pending' WHEN status = 'SUCCESS' THEN 'ended' ELSE 'failed' END
    FROM dbos.workflow_status
"""
PGTASK = """
    SELECT payload ->> 'run', CASE WHEN state IN ('pending', 'running', 'waiting') THEN 'pending' WHEN state = 'succeeded' THEN 'ended' ELSE 'failed' END
    FROM pgtask.tasks
"""
PROCRASTINATE = f"""
    SELECT args ->> 'run', CASE
        WHEN bool_or(status IN ('todo', 'doing')) THEN 'pending'
        WHEN bool_or(status = 'succeeded' AND (args ->> 'step')::int = {STEPS - 1}) THEN 'ended'
        WHEN bool_or(status <> 'succeeded') THEN 'failed'
        ELSE 'lost' END
    FROM procrastinate_jobs WHERE task_name = 'act' GROUP BY 1
"""
ABSURD = """
    SELECT params ->> 'run', CASE WHEN state IN ('pending', 'running', 'sleeping') THEN 'pending' WHEN state = 'completed' THEN 'ended' ELSE 'failed' END
    FROM absurd.t_default
"""
LANGGRAPH = "SELECT run, state FROM threads"
LAST_STEP_DONE = f"SELECT DISTINCT run, 'ended' FROM executions WHERE step = {STEPS - 1} AND done_at IS NOT NULL"
CELERY_QUEUE, CELERY_UNACKED = "celery", "unacked"


def by_sql(query):
    """Return a function that asks Postgres."""
    return lambda site, ask: dict(ask(site, query))


def of_celery(site, ask):
    """Find runs among the messages that Redis holds. A run has ended when its last step is done: results may be gone with Redis."""
    redis = site.broker.redis
    try:
        queued = redis.lrange(CELERY_QUEUE, 0, -1)
        taken = [json.loads(each)[0] for each in redis.hvals(CELERY_UNACKED)]
    except RedisError:
        queued, taken = [], []
    bodies = [message["body"] for message in (*map(json.loads, queued), *taken)]
    pending = {json.loads(base64.b64decode(body))[0][1] for body in bodies}
    return dict.fromkeys(pending, "pending") | dict(ask(site, LAST_STEP_DONE))


class Tool(NamedTuple):
    """A project.

    Attributes:
        name: its name. module: its side.
        packages: what is installed, the first of which has the version that is shown; none for the tree that this runs in.
        states: returns `pending`, `ended` or `failed` by run.
        has_redis: whether faults of Redis concern it.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    states: Callable
    has_redis: bool = False


TOOLS = (
    Tool("Flujo Worker", "side_flujo", (), by_sql(FLUJO), has_redis=True),
    Tool("Celery", "side_celery", ("celery", "kombu[redis]", "psycopg[binary]"), of_celery, has_redis=True),
    Tool("DBOS", "side_dbos", ("dbos", "psycopg[binary]"), by_sql(DBOS)),
    Tool("pgtask", "side_pgtask", ("pgtask", "psycopg[binary]"), by_sql(PGTASK)),
    Tool("Procrastinate", "side_procrastinate", ("procrastinate", "psycopg[binary,pool]"), by_sql(PROCRASTINATE)),
    Tool("Absurd", "side_absurd", ("absurd-sdk", "absurdctl", "psycopg[binary]"), by_sql(ABSURD)),
    Tool(
        "LangGraph",
        "side_langgraph",
        ("langgraph", "langgraph-checkpoint-postgres", "psycopg[binary,pool]"),
        by_sql(LANGGRAPH),
    ),
)


class Installed(NamedTuple):
    """A tool in its environment."""

    tool: Tool
    python: Path
    version: str

    def command(self, role, *arguments):
        """Return the command of a role of its side."""
        return [str(self.python), str(Path(__file__).with_name(f"{self.tool.module}.py")), role, *arguments]


def installed(tool, folder):
    """Install a tool from wheels into an environment of its own; return nothing, and say why, where that fails."""
    if not tool.packages:
        return Installed(tool, Path(sys.executable), commit())
    where = folder / tool.module
    done = install(where, tool.packages)
    if done.returncode:
        print(f"{tool.name} does not install from wheels:\n{done.stderr.strip()}", file=sys.stderr)
        return None
    python = where / "bin" / "python"
    return Installed(tool, python, version(python, tool.packages[0]))


def commit():
    """Return the commit of this tree."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
