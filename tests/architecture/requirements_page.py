"""Print a page with each requirement and the tests that name its id: `make requirements`."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
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

The tests name requirements by id. This page lists each id, what it requires, and the files with tests that name it; only tests that
`make check` runs count. It is made from `tests/requirements.toml` and the tests; a test fails when an id has neither a test nor the reason
why it has none.
"""

UNCHECKED = re.compile(r"mark\.(chaos|release)\b")
"""The marks of tests that no target of `make check` runs."""


def named_in(text: str) -> set[str]:
    """Return the ids that a text names, with those inside of spans such as M-033…M-036."""
    within = {
        f"{kind}-{number:0{len(first)}}"
        for kind, first, last in SPAN.findall(text)
        for number in range(int(first), int(last) + 1)
    }
    return set(ID.findall(text)) | (within & SENTENCES.keys())


def checked_modules() -> list[Path]:
    """List the modules of tests that `make check` runs, at least in part."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if checked_text(path)]


def checked_text(path: Path) -> str:
    """Return what is in a module of tests, without tests that `make check` does not run."""
    text = path.read_text(encoding="utf-8")
    if not UNCHECKED.search(text):
        return text
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        is_for_all = isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets)
        if is_for_all and UNCHECKED.search(ast.unparse(node)):
            return ""
        decorators = getattr(node, "decorator_list", [])
        if any(UNCHECKED.search(ast.unparse(each)) for each in decorators):
            first, last = decorators[0].lineno, node.end_lineno or len(lines)
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "".join(lines)


def files_by_id() -> dict[str, list[str]]:
    """Return the files with tests that name each id."""
    found: dict[str, list[str]] = {}
    for path in checked_modules():
        for each in named_in(checked_text(path)):
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
    print(page(), end="")
