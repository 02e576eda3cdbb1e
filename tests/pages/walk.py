"""Follows a page in an empty folder: writes its files, runs its commands, and compares what they print."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from page import Block, Command, blocks

from tests.support.openai_server import OpenAIServer, Said

COMMAND_S: Final = 120
"""Seconds for one command; a machine that runs other tests meanwhile starts services slowly."""
_SAID: Final = {"model": "text", "tool": "arguments"}
"""What a comment before a block is in the model's answer."""


class Walk:
    """One user with one page.

    Args:
        folder: an empty one.
        programs: where `python` and `flujo` are.
        environment: variables besides those that every user has.
    """

    def __init__(self, folder: Path, programs: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._model = OpenAIServer(())
        self._beside: list[subprocess.Popen[str]] = []
        self._run: set[str] = set()
        self._environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "COLUMNS": "100",
            "OPENAI_API_KEY": "no-secret",
            "PYTHONUNBUFFERED": "1",
        } | dict(environment or {})

    def follow(self, text: str) -> None:
        """Do what the page says, from top to bottom; then run each Python file that no command has named.

        Raises:
            AssertionError: a command prints something else than the page shows, or ends otherwise; says which, and in which line.
        """
        with self._model:
            self._environment["OPENAI_BASE_URL"] = self._model.url
            try:
                for block in blocks(text):
                    self._do(block)
                for path in sorted(self._unnamed()):
                    self._command(Command(f"python {path}", ""), Block(0, "console", ""))
            finally:
                self._stop()

    def _do(self, block: Block) -> None:
        if block.noted("not run"):
            return
        answers = [Said(**{_SAID[which]: what}) for which, what in block.notes if which in _SAID]
        if answers:
            self._model.answers = answers
            self._model.requests.clear()
        if block.language == "console":
            self._type(block)
            return
        assert block.path is not None, f"line {block.line}: a block needs a path in a comment at its head"
        file = self.folder / block.path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w" if block.noted("replace") else "a") as out:
            out.write(block.text)

    def _type(self, block: Block) -> None:
        commands = block.commands
        assert commands, f"line {block.line}: a console block has lines that begin with '$ '"
        words = {word for command in commands for word in command.line.split()}
        self._run |= {word if word.endswith(".py") else f"{word}.py" for word in words}
        for command in commands[:-1]:
            self._command(command, block)
        if block.noted("background"):
            self._start(commands[-1], block)
        else:
            self._command(commands[-1], block, int((block.noted("exit") or ["0"])[0]))

    def _command(self, command: Command, block: Block, code: int = 0) -> None:
        if command.line.startswith("cd "):
            self.folder /= command.line.removeprefix("cd ")
            return
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self.folder,
            env=self._environment,
            input="".join(f"{line}\n" for line in block.noted("input")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        print(f"{time.monotonic() - began:5.1f} s  {command.line}")  # `pytest -s` shows a page's times
        where = f"line {block.line}: $ {command.line}\n"
        assert done.returncode == code, f"{where}exit code {done.returncode}, not {code}:\n{done.stdout}"
        assert command.fits(done.stdout), f"{where}the page shows:\n{command.printed}\nit prints:\n{done.stdout}"

    def _start(self, command: Command, block: Block) -> None:
        log = self.folder / f"beside-{len(self._beside)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.line}"],
                cwd=self.folder,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._beside.append(process)
        deadline = time.monotonic() + COMMAND_S
        while not command.fits(log.read_text()):
            where = f"line {block.line}: $ {command.line}\n"
            assert time.monotonic() < deadline, (
                f"{where}the page shows:\n{command.printed}\nit prints:\n{log.read_text()}"
            )
            assert process.poll() is None, f"{where}ended with {process.returncode}:\n{log.read_text()}"
            time.sleep(0.05)

    def _unnamed(self) -> set[str]:
        """The Python files that nothing has run: neither a command, nor another file or a command by its module's name."""
        files = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.py") if ".flujo" not in path.parts}
        return {path for path in files - self._run if not path.endswith(("__init__.py",))}

    def _stop(self) -> None:
        """Stop what runs next to the page, the last one first: a worker before the services that it uses."""
        for process in reversed(self._beside):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
