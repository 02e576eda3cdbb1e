"""W8 on DBOS: a workflow whose requests and tools are steps, beside the agent without it."""

from __future__ import annotations

import argparse
import asyncio
import os
from functools import partial

from dbos import DBOS
from pydantic_ai.durable_exec.dbos import DBOSDurability

from tests.bench.durable_agent import agent, compared, look, measured
from tests.bench.protocol import DATABASE, own_stdout, serve

PLAIN = agent("plain")
DURABLE = agent("durable", DBOSDurability(), tool=DBOS.step()(look))


@DBOS.workflow()
async def research() -> None:
    await DURABLE.run("begin")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--processes")
    options.parse_args()
    answers = own_stdout()
    url = os.environ[DATABASE].replace("postgresql://", "postgresql+psycopg://")
    DBOS(config={"name": "agents", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    with asyncio.Runner() as runner:

        def of(together: int, run):  # type: ignore[no-untyped-def]
            return lambda: runner.run(measured(together, run))

        workloads = {
            f"W8 {n}": partial(compared, n, of(n, lambda: PLAIN.run("begin")), of(n, research)) for n in (1, 16)
        }
        serve(workloads, answers)
    os._exit(0)


if __name__ == "__main__":
    main()
