"""Write `docs/requirements.md`: each requirement with the tests that name its id.

Run it as `python tests/architecture/requirements_page.py` after an id is added to a test or to `tests/requirements.toml`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "requirements.md"
_READ = tomllib.loads((ROOT / "tests" / "requirements.toml").read_text(encoding="utf-8"))
WITHOUT_TEST: dict[str, str] = _READ.pop("without_test")
"""Why no test shows an id."""
SENTENCES: dict[str, str] = _READ

ID = re.compile(r"\b(?:M|C|SYS|U)-\d{2,3}\b")
SPAN = re.compile(r"\b(M|C|SYS|U)-(\d{2,3})(?:…| to )\1-(\d{2,3})\b")

SECTIONS = {
    "M": ("Requirements", "What Flujo Worker must do."),
    "C": ("Decisions", "What holds where requirements contradict each other or leave something open."),
    "SYS": ("Systems", "The parts of the system."),
    "U": ("Reported faults", "Faults that users of the original flujo reported. Each must not occur here."),
}

HEAD = """\
# Requirements

The tests name requirements by id. This page lists each id, what it requires, and the test files that name it. It is generated
by `tests/architecture/requirements_page.py` from `tests/requirements.toml` and the tests; a test keeps it up to date, and fails when an
id has neither a test nor the reason why there can be none.
"""


def named_in(text: str) -> set[str]:
    """Return the ids that a text names, with those inside of spans such as M-033…M-036."""
    within = {
        f"{kind}-{number:0{len(first)}}"
        for kind, first, last in SPAN.findall(text)
        for number in range(int(first), int(last) + 1)
    }
    return set(ID.findall(text)) | (within & SENTENCES.keys())


def files_by_id() -> dict[str, list[str]]:
    """Return the test files that name each id."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for each in named_in(path.read_text(encoding="utf-8")):
            found.setdefault(each, []).append(path.relative_to(ROOT / "tests").as_posix())
    return found


def page() -> str:
    """Return the page's text."""
    tests = files_by_id()
    parts = [HEAD]
    for kind, (title, introduction) in SECTIONS.items():
        rows = [
            f"| {each} | {sentence.replace('|', chr(92) + '|')} | {_shown(each, tests)} |"
            for each, sentence in SENTENCES.items()
            if each.startswith(f"{kind}-")
        ]
        parts.append(
            "\n".join(["", f"## {title}", "", introduction, "", "| id | what | tests |", "|---|---|---|", *rows, ""])
        )
    return "".join(parts)


def _shown(each: str, tests: dict[str, list[str]]) -> str:
    return ", ".join(f"`{path}`" for path in tests.get(each, [])) or WITHOUT_TEST[each]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
