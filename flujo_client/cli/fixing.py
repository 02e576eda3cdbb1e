"""`flujo validate --fix`: show the fixes of a blueprint's file, ask, and write it. `blueprint/autofix.py` makes the fixes."""

from __future__ import annotations

import dataclasses
import difflib
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import click

from flujo_client.blueprint.autofix import Autofixed
from flujo_client.blueprint.rules.table import Profile
from flujo_client.blueprint.validate import autofix_file
from flujo_client.cli.format import counted
from flujo_client.cli.output import say, show_value
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintError
from flujo_client.pipeline.reference import is_file


@dataclass(frozen=True, slots=True)
class FixOptions:
    """Whether a file's fixes are shown, confirmed, and written."""

    shows: bool
    asks: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class Fixed:
    """The result of fixing a file."""

    findings: Sequence[Finding] = ()
    diff: str = ""
    is_written: bool = False

    def shape(self) -> dict[str, Any]:
        """Return what `--json` has of it, apart from the findings that are left."""
        mended = [dataclasses.asdict(each) for each in self.findings]
        return {"mended": mended, "diff": self.diff, "written": self.is_written}


def how_to_fix(*, fix: bool, dry_run: bool, yes: bool, in_json: bool) -> FixOptions | None:
    """Return how the options want files to be fixed; None: not at all. Raises UsageError for options that exclude each other."""
    if (fix and dry_run) or (yes and not fix):
        raise click.UsageError(
            "give either --fix, which writes, or --fix-dry-run, which does not; --yes works only with --fix"
        )
    if fix and in_json and not yes:
        raise click.UsageError(
            "--fix asks before it writes, which JSON output does not allow: add --yes, or use --fix-dry-run"
        )
    return FixOptions(shows=not in_json, asks=not yes, writes=fix) if fix or dry_run else None


def fix_files(targets: Sequence[str], how: FixOptions, *, allowed: Sequence[str], profile: Profile) -> dict[str, Fixed]:
    """Fix blueprints' files.

    Args:
        targets: the files; missing ones are left to the validation.
        how: whether to show the fixes, ask, and write them.
        allowed: import prefixes that references may be under.
        profile: rules that it turns off are not fixed.

    Raises:
        UsageError: one is not a file, or stdin is not a terminal.
    """
    for each in targets:
        if not is_file(each):
            raise click.UsageError(f"'{each}' is not a blueprint file; only blueprint files can be fixed")
    return {each: _fixed(each, how, allowed=allowed, profile=profile) for each in targets}


def _fixed(target: str, how: FixOptions, *, allowed: Sequence[str], profile: Profile) -> Fixed:
    try:
        data, mended = autofix_file(target, allowed=allowed, profile=profile)
    except BlueprintError:
        return Fixed()
    return _carried_out(target, how, data, mended)


def _carried_out(target: str, how: FixOptions, data: bytes, mended: Autofixed) -> Fixed:
    if not mended.findings:
        say(f"{target}: no finding can be fixed automatically")
        return Fixed()
    mark = data[: len(_BYTE_ORDER_MARK)] if data.startswith(_BYTE_ORDER_MARK) else b""
    diff = _diff(target, data[len(mark) :].decode(), mended.text)
    if how.shows:
        show_value(diff.rstrip("\n"))
    is_written = how.writes and (not how.asks or _is_wanted(target, len(mended.findings)))
    if is_written:
        _write(target, data, mark + mended.text.encode())
        say(f"{target}: {counted(len(mended.findings), 'correction')} written")
    return Fixed(mended.findings, diff, is_written)


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _diff(target: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(list(StringIO(before)), list(StringIO(after)), target, target)
    return "".join(each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in lines)


def _is_wanted(target: str, count: int) -> bool:
    try:
        return click.confirm(f"write {counted(count, 'correction')} into {target}?", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("--fix asks before it writes, and stdin is not a terminal: add --yes") from None


def _write(target: str, before: bytes, after: bytes) -> None:
    """Write a file as a whole or not at all, even if the disk is full or the machine crashes; links, owner and mode are preserved."""
    file = Path(target).resolve()
    try:
        with file.open("r+b") as opened:  # a rename would replace a read-only file
            if opened.read() != before:
                raise click.UsageError(
                    f"{target} was changed after it was read and has been left unchanged: run this command again"
                )
            _replace(file, after, os.fstat(opened.fileno()))
    except OSError as error:
        raise click.FileError(target, error.strerror) from error


def _replace(file: Path, data: bytes, like: os.stat_result) -> None:
    descriptor, draft = mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            os.fsync(descriptor)
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink()
        raise
