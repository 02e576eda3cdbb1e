"""Try each row of the matrix, and write `docs/reference/compatibility.md`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from flujo_client.embedded.postgres import find_binaries
from tests.bench.machine import machine
from tests.compat import POSTGRES
from tests.compat.environments import environment, find_postgres, find_python, major_of, version_of
from tests.compat.page import Shown, page, table
from tests.compat.pins import PRODUCTS, beside, resolve
from tests.compat.rows import LOWEST, NEWEST, POSTGRES_VERSIONS, PYTHONS, ROOT, ROWS, Row
from tests.compat.turns import by_turns

PAGE = ROOT / "docs/reference/compatibility.md"
TESTS = (
    "tests/compat/test_matrix.py",
    "tests/integration/test_bulk_channel.py",
    "tests/integration/test_celery_contract.py",
    "tests/integration/test_chord_contract.py",
    "tests/integration/test_chords.py",
    "tests/unit/worker/test_private_names.py",
)
OLD = (
    "tests/integration/test_agent_requests.py",
    "tests/unit/client/test_serial_strict.py",
    "tests/unit/worker/test_response_check.py",
    "tests/unit/worker/test_structured_outputs.py",
    "tests/unit/worker/test_type_judge.py",
)
"""What an old pydantic or pydantic-ai could break: the oldest row has the oldest of each."""
OURS = Path(sys.base_prefix) / "bin" / "python3"
"""The Python that this environment was made with."""

QUIET = ("-q", "--disable-warnings", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--forks", "2")
CHOICE = "not large and not chaos"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("--lowest", action="store_true", help="try the oldest row only, and write no page")
    parser.add_argument("--only", action="append", help="a version of Celery; repeatable; writes no page")
    options = parser.parse_args()
    wanted = [LOWEST.celery] if options.lowest else options.only or []
    shown = [tried(Try(row)) for row in ROWS if row.celery in wanted] if wanted else everything()
    print(table(shown))
    found = [] if wanted else [resolve(product) for product in PRODUCTS]
    if not wanted:
        print(beside(found))
        here = "{cores} processors, {system}, Python {python}".format(**machine())
        text = page(shown, products=beside(found), date=time.strftime("%Y-%m-%d"), machine=here)
        PAGE.write_text(text, encoding="utf-8")
    sys.exit(not all(each.is_green for each in shown) or any(each.refusal for each in found))


class Try(NamedTuple):
    """One line of the table: a row with a Python and a Postgres, as versions."""

    row: Row
    python: str = version_of(OURS)
    postgres: int = major_of(find_binaries())


def everything() -> list[Shown]:
    """Try all rows, other Pythons and servers with the newest row, and compare the rows' times."""
    usual = Try(NEWEST)
    pythons = [Try(NEWEST, python=version) for version in PYTHONS if version != usual.python]
    servers = [Try(NEWEST, postgres=version) for version in POSTGRES_VERSIONS if version != usual.postgres]
    rows = [tried(Try(row)) for row in ROWS]
    turns = by_turns({row.celery: environment(row, OURS) for row in ROWS}, NEWEST.celery)
    for line, row in zip(rows, ROWS, strict=True):
        line.ratio = turns[row.celery].ratio
        line.sent_again += turns[row.celery].sent_again
    return [*rows, *map(tried, pythons), *map(tried, servers)]


def tried(what: Try) -> Shown:
    """Run the tests of one line in its environment."""
    row = what.row
    shown = Shown([row.celery, row.kombu, row.redis, what.python, str(what.postgres)])
    python = OURS if what.python == version_of(OURS) else find_python(what.python)
    server = find_binaries() if what.postgres == major_of(find_binaries()) else find_postgres().get(what.postgres)
    if python is None:
        shown.skipped = f"no Python {what.python} was found"
    elif server is None:
        shown.skipped = f"no Postgres {what.postgres} was found"
    else:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "junit.xml"
            pytest = [environment(row, python), "-m", "pytest", *QUIET, "-m", CHOICE]
            print(f"Celery {' / '.join(shown.title)}", file=sys.stderr)
            shown.exit_code = subprocess.run(
                [*pytest, f"--junitxml={report}", *TESTS, *(OLD if row is LOWEST else ())],
                cwd=ROOT,
                env=os.environ | {POSTGRES: str(server)},
                stdout=sys.stderr,
                check=False,
            ).returncode
            if report.exists():
                shown.read(report.read_text(encoding="utf-8"))
    return shown


if __name__ == "__main__":
    main()
