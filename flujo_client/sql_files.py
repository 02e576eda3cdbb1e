"""Read the SQL of a package: one statement in each file of its folder `sql/`."""

import re
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


def written(name: str, home: str) -> str:
    """Return the text of a package's `sql/<name>.sql`.

    Text that several statements share is a file of `sql/parts/`, included by the line `-- include <name>`.
    """
    text = files(home).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: written(f"parts/{found[1]}", home), text)


def without_comments(name: str, home: str) -> str:
    """Return the text of a statement without its comment lines, which Postgres need not parse each time."""
    lines = [line for line in written(name, home).splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
