"""Write the tables of metrics in `docs/reference/metrics.md`, made from their definitions: `make settings`."""

import re
from pathlib import Path

from flujo_client.metrics.definitions import FLEET, PROCESS

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
_HEAD = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"


def metrics_table(metrics):
    """Return the table of some metrics."""
    return _HEAD + "".join(
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |\n"
        for each in metrics
    )


def page_with_tables():
    """Return the page with these tables in the places of its own."""
    tables = iter([metrics_table(FLEET), metrics_table(PROCESS)])
    return re.sub(re.escape(_HEAD) + r"(?:\|.*\n)*", lambda _: next(tables), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), encoding="utf-8")
