"""The table of limits says what the constants say."""

import re
from pathlib import Path

from flujo_client import sizes

PAGE = Path(__file__).parents[2] / "docs/reference/limits.md"


def test_every_limit_is_in_the_table_with_its_value():
    told = dict(re.findall(r"^\| `(MAX_\w+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {name: str(value) for name, value in vars(sizes).items() if name.startswith("MAX_")}
