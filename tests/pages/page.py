"""A page of the documentation as a user follows it: files to write and commands to run, from top to bottom.

A block of code that begins with a comment that is a path (`# app.py`, or `{# prompt.md.j2 #}` in a template) is that file; a later block
with the same path continues it.
In a `console` block, lines after `$ ` are commands, and the others are what they print: `…` stands for any text in its line, and a
line that is only `…` for any lines. `cd` changes the folder of all that follows. A comment before a block says what is not to be seen:

- `<!-- exit: 1 -->`: the exit code of the block's last command.
- `<!-- background -->`: the command continues next to the rest of the page; the next block waits until it has printed its lines.
- `<!-- model: text -->`: what the model says next. It repeats its last answer. `<!-- tool: {"a": 1} -->` is a call of the first tool.
- `<!-- input: yes -->`: a line on the standard input of the block's commands.
- `<!-- replace -->`: the block replaces the file.
- `<!-- not run: reason -->`: the block is not run; the reason says why it cannot be here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_FENCE: Final = re.compile(r"^( *)(`{3,})(\w*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
_NOTE: Final = re.compile(r"<!-- (exit|background|replace|model|tool|input|not run)(?:: (.*?))? -->", re.DOTALL)
_PATH: Final = re.compile(r"(?:#|//|--|;|\{#) ([\w./-]+\.\w+|Procfile|Dockerfile|Makefile)(?: #\})?\n")
_LANGUAGES: Final = {"python", "yaml", "toml", "json", "console", "markdown", "ini"}
"""What a reader would copy. Other blocks (`text`, `sql`) are shown."""


@dataclass(frozen=True)
class Command:
    """One command, and what it prints."""

    line: str
    printed: str

    def fits(self, output: str) -> bool:
        """Say whether an output is what the page shows."""
        shown = self.printed.strip("\n")
        return not shown or re.fullmatch(_pattern(shown), _plain(output)) is not None


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        line: where it begins in its page.
        language: as its fence says.
        text: what is in it.
        notes: what the comments before it say.
    """

    line: int
    language: str
    text: str
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def path(self) -> str | None:
        """The file that the block is, or continues with."""
        head = _PATH.match(self.text)
        return head.group(1) if head else None

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block, in order."""
        pieces = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        split = [re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", piece, re.DOTALL) for piece in pieces]
        return [Command(found.group(1), found.group(2)) for found in split if found]

    def noted(self, name: str) -> list[str]:
        """Read what the comments of one kind say."""
        return [what for which, what in self.notes if which == name]


def blocks(page: str) -> Iterator[Block]:
    """Read a page's blocks that a reader would copy."""
    after = 0
    for fence in _FENCE.finditer(page):
        notes = _NOTE.findall(page[after : fence.start()])
        after = fence.end()
        indent, _, language, text = fence.groups()
        if language in _LANGUAGES:
            text = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
            yield Block(page.count("\n", 0, fence.start()) + 1, language, text, notes)


def _plain(output: str) -> str:
    without_color = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).replace("\r", "")
    return "".join(f"{line.rstrip()}\n" for line in without_color.strip("\n").split("\n"))


def _pattern(shown: str) -> str:
    """Make a pattern of the lines that a page shows."""
    lines = (line.rstrip() for line in shown.split("\n"))
    return "".join(
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in lines
    )
