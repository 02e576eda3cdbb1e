"""`flujo validate`: report all faults of a pipeline at once, before anything is sent. It needs no services and no worker.

`--fix` shows the fixes of a blueprint's file, asks, and writes it; `blueprint/autofix.py` makes the fixes.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import click

from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.finding import nearest
from flujo_client.blueprint.rules.table import RULES, Profile, checked
from flujo_client.blueprint.validate import autofix_file, validate
from flujo_client.cli.format import counted, printable
from flujo_client.cli.output import OK, VALIDATION, exit_code, say, show_json, show_value
from flujo_client.config.manager import ConfigManager
from flujo_client.config.toml_positions import read
from flujo_client.contract.validation import Finding, ValidationReport
from flujo_client.errors import BlueprintError, SettingsError
from flujo_client.pipeline.reference import is_file


@dataclass(frozen=True, slots=True)
class _FixOptions:
    """Whether a file's fixes are shown, confirmed, and written."""

    shows: bool
    asks: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The result of fixing a file."""

    findings: Sequence[Finding] = ()
    diff: str = ""
    is_written: bool = False

    def shape(self) -> dict[str, Any]:
        """Return what `--json` has of it, apart from the findings that are left."""
        mended = [asdict(each) for each in self.findings]
        return {"mended": mended, "diff": self.diff, "written": self.is_written}


@click.command("validate")
@click.argument("targets", nargs=-1)
@click.option("--strict/--no-strict", default=True, show_default=True, help="Exit with 4 on errors.")
@click.option("--fail-on-warn", is_flag=True, help="Exit with 4 on warnings as well.")
@click.option(
    "--imports/--no-imports", default=True, show_default=True, help="Report findings in imported blueprints as well."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--profile",
    metavar="NAME",
    help="A profile from [validation.profiles] in flujo.toml, which sets the severity of rules.",
)
@click.option(
    "--rules", metavar="FILE", help="A TOML file with such severities, or a profile's name; overrides --profile."
)
@click.option("--fix", is_flag=True, help="Apply the safe fixes to the files; shows the changes and asks first.")
@click.option("--fix-dry-run", is_flag=True, help="Show what --fix would write, and write nothing.")
@click.option("--yes", is_flag=True, help="Let --fix write without asking.")
@click.option("--list-rules", is_flag=True, help="List the rules, and validate nothing.")
@click.option("--schema", "show_schema", is_flag=True, help="Print the JSON Schema of blueprints, for editors.")
@click.pass_context
def command(  # noqa: PLR0913 - a parameter for each option
    context: click.Context,
    *,
    targets: Sequence[str],
    strict: bool,
    fail_on_warn: bool,
    imports: bool,
    form: str,
    as_json: bool,
    profile: str | None,
    rules: str | None,
    fix: bool,
    fix_dry_run: bool,
    yes: bool,
    list_rules: bool,
    show_schema: bool,
) -> None:
    """Find all faults of TARGETS: blueprint files, or pipelines as 'package.module:attribute'.

    Each finding is printed as a line: file:line:column: rule: key: what is wrong. Modules that a blueprint names are imported; nothing else
    happens, unless --fix writes. Exits with 3 if a target does not exist, else with 4 if a pipeline has errors.
    """
    in_json = as_json or form == "json"
    if show_schema:
        show_json(json_schema())
    elif list_rules:
        _show_rules(in_json=in_json)
    elif not targets:
        raise click.UsageError("name a blueprint's file, or a pipeline as package.module:attribute")
    else:
        settings = ConfigManager().settings()
        weights = profile_of(settings.validation.profiles, profile, rules)
        how = _how_to_fix(fix=fix, dry_run=fix_dry_run, yes=yes, in_json=in_json)
        fixed = _fix_files(targets, how, allowed=settings.allowed_imports, profile=weights) if how else {}
        found = [validate(each, allowed=settings.allowed_imports, include_imports=imports) for each in targets]
        reports = [weights.applied(each) for each in found]
        _show(reports, fixed, in_json=in_json)
        for each in found:
            _print_kept(each, weights)
        context.exit(min(_codes(reports, strict=strict, fail_on_warn=fail_on_warn), default=OK))


def _codes(reports: Sequence[ValidationReport], *, strict: bool, fail_on_warn: bool) -> Iterator[int]:
    """Return the exit codes that reports call for: what could not be looked at counts in any case, and before what was found."""
    for each in reports:
        if each.unseen is not None:
            yield exit_code(each.unseen)
        elif (strict and each.errors) or (fail_on_warn and each.warnings):
            yield VALIDATION


def profile_of(profiles: Mapping[str, Mapping[str, str]], name: str | None, rules: str | None) -> Profile:
    """Make the profile that the options name.

    Args:
        profiles: those of flujo.toml.
        name: one of them.
        rules: one of them, else a file; takes precedence.

    Raises:
        SettingsError: there is no such profile; or that one, or any of flujo.toml, is invalid.
    """
    for known, weights in profiles.items():
        checked(weights, f"profile '{known}'")
    tables: list[Mapping[str, str]] = []
    if rules is not None:
        is_path = rules not in profiles and (Path(rules).exists() or rules.endswith(".toml"))
        tables.append(checked(read(Path(rules)).tree, rules) if is_path else _profile(profiles, rules))
    if name is not None:
        tables.append(_profile(profiles, name))
    return Profile(tuple(tables))


def _profile(profiles: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    if name not in profiles:
        near = nearest(name, profiles)
        known = f"[validation.profiles] has {', '.join(profiles) or 'none'}"
        raise SettingsError(f"there is no profile '{name}'", suggestion=f"did you mean '{near}'?" if near else known)
    return profiles[name]


def _print_kept(report: ValidationReport, profile: Profile) -> None:
    if kept := profile.kept(report):
        say(
            f"{report.target}: {', '.join(kept)}: enqueueing refuses such a pipeline, so a profile cannot lower its severity"
        )


def _show(reports: Sequence[ValidationReport], fixed: Mapping[str, _Fixed], *, in_json: bool) -> None:
    if in_json:
        shapes = [_shape(each) | (fixed[each.target].shape() if fixed else {}) for each in reports]
        show_json(shapes[0] if len(shapes) == 1 else shapes)
        return
    for each in reports:
        for finding in each.findings:
            show_value(printable(str(finding)))
        parts = [
            counted(len(found), name) for found, name in ((each.errors, "error"), (each.warnings, "warning")) if found
        ]
        say(f"{each.target}: {' and '.join(parts) or 'no problems found'}")


def _shape(report: ValidationReport) -> dict[str, Any]:
    findings = [asdict(each) for each in report.findings]
    return {"target": report.target, "valid": report.is_valid, "findings": findings}


def _show_rules(*, in_json: bool) -> None:
    if in_json:
        show_json([{"rule": name, "severity": rule.severity, "what": rule.what} for name, rule in RULES.items()])
        return
    width = max(map(len, RULES))
    for name, rule in RULES.items():
        show_value(f"{name:<{width}}  {rule.severity:<7}  {rule.what}")


def _how_to_fix(*, fix: bool, dry_run: bool, yes: bool, in_json: bool) -> _FixOptions | None:
    """Return how the options want files to be fixed; None: not at all. Raises UsageError for options that exclude each other."""
    if (fix and dry_run) or (yes and not fix):
        raise click.UsageError(
            "give either --fix, which writes, or --fix-dry-run, which does not; --yes works only with --fix"
        )
    if fix and in_json and not yes:
        raise click.UsageError(
            "--fix asks before it writes, which JSON output does not allow: add --yes, or use --fix-dry-run"
        )
    return _FixOptions(shows=not in_json, asks=not yes, writes=fix) if fix or dry_run else None


def _fix_files(
    targets: Sequence[str], how: _FixOptions, *, allowed: Sequence[str], profile: Profile
) -> dict[str, _Fixed]:
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


def _fixed(target: str, how: _FixOptions, *, allowed: Sequence[str], profile: Profile) -> _Fixed:
    try:
        data, mended = autofix_file(target, allowed=allowed, profile=profile)
    except BlueprintError:
        return _Fixed()
    if not mended.findings:
        say(f"{target}: no finding can be fixed automatically")
        return _Fixed()
    mark = data[: len(BOM_UTF8)] if data.startswith(BOM_UTF8) else b""
    diff = _diff(target, data[len(mark) :].decode(), mended.text)
    if how.shows:
        show_value(diff.rstrip("\n"))
    is_written = how.writes and (not how.asks or _is_wanted(target, len(mended.findings)))
    if is_written:
        _write(target, data, mark + mended.text.encode())
        say(f"{target}: {counted(len(mended.findings), 'correction')} written")
    return _Fixed(mended.findings, diff, is_written)


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
