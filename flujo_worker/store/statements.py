"""The SQL statements, one file each, read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statement(name: str) -> bytes:
    """Read the statement `sql/<name>.sql`, without its comment lines, which Postgres need not parse each time."""
    text = files("flujo_worker.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";").encode()
