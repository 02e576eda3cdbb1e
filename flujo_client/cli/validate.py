"""`flujo validate`: report all faults of a pipeline at once, before anything is sent. It needs no services and no worker.

`--fix` shows the fixes of a blueprint's file, asks, and writes it; `blueprint/autofix.py` makes the fixes.
"""

from __future__ import annotations

import difflib
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import click

from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.finding import nearest
from flujo_client.blueprint.rules.table import RULES, Profile, checked
from flujo_client.blueprint.validate import autofix_file, validate
from flujo_client.cli.format import counted, printable
from flujo_client.cli.options import flag, option
from flujo_client.cli.output import OK, VALIDATION, exit_code, is_wanted, say, show_json, show_value
from flujo_client.config.manager import ConfigManager
from flujo_client.config.toml_positions import read
from flujo_client.contract.validation import Finding, ValidationReport
from flujo_client.errors import BlueprintError, SettingsError
from flujo_client.pipeline.reference import is_file


class _Fixed(NamedTuple):
    findings: Sequence[Finding] = ()
    diff: str = ""
    is_written: bool = False

    def shape(self) -> dict[str, Any]:
        """Return what `--json` has of it, apart from the findings that are left."""
        return {"mended": [asdict(each) for each in self.findings], "diff": self.diff, "written": self.is_written}


@click.command("validate")
@click.argument("targets", nargs=-1)
@option("--strict/--no-strict", default=True, show_default=True, help="Exit with 4 on errors.")
@flag("--fail-on-warn", help="Exit with 4 on warnings as well.")
@option(
    "--imports/--no-imports", default=True, show_default=True, help="Report findings in imported blueprints as well."
)
@option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@flag("--json", "as_json", help="The same as --format json.")
@option(
    "--profile",
    metavar="NAME",
    help="A profile from [validation.profiles] in flujo.toml, which sets the severity of rules.",
)
@option("--rules", metavar="FILE", help="A TOML file with such severities, or a profile's name; overrides --profile.")
@flag("--fix", help="Apply the safe fixes to the files; shows the changes and asks first.")
@flag("--fix-dry-run", help="Show what --fix would write, and write nothing.")
@flag("--yes", help="Let --fix write without asking.")
@flag("--list-rules", help="List the rules, and validate nothing.")
@flag("--schema", "show_schema", help="Print the JSON Schema of blueprints, for editors.")
def command(  # noqa: PLR0913 - a parameter for each option
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
) -> int:
    """Find all faults of TARGETS: blueprint files, or pipelines as 'package.module:attribute'.

    Each finding is printed as a line: file:line:column: rule: key: what is wrong. Modules that a blueprint names are imported; nothing else
    happens, unless --fix writes. Exits with 3 if a target does not exist, else with 4 if a pipeline has errors.
    """
    in_json = as_json or form == "json"
    if show_schema:
        show_json(json_schema())
        return OK
    if list_rules:
        _show_rules(in_json=in_json)
        return OK
    if not targets:
        raise click.UsageError("name a blueprint's file, or a pipeline as package.module:attribute")
    settings = ConfigManager().settings()
    weights = profile_of(settings.validation.profiles, profile, rules)
    allowed = settings.allowed_imports
    _check_fix_options(targets, fix=fix, dry_run=fix_dry_run, yes=yes, in_json=in_json)
    fixing = partial(_fixed, shows=not in_json, asks=not yes, writes=fix, allowed=allowed, profile=weights)
    fixed = {each: fixing(each) for each in targets} if fix or fix_dry_run else {}
    found = [validate(each, allowed=allowed, include_imports=imports) for each in targets]
    reports = [weights.applied(each) for each in found]
    _show(reports, fixed, in_json=in_json)
    for each in found:
        if kept := ", ".join(weights.kept(each)):
            why = "enqueueing refuses such a pipeline, so a profile cannot lower its severity"
            say(f"{each.target}: {kept}: {why}")
    return min(_codes(reports, strict=strict, fail_on_warn=fail_on_warn), default=OK)


def _codes(reports: Sequence[ValidationReport], *, strict: bool, fail_on_warn: bool) -> Iterator[int]:
    """Return the exit codes that reports call for: what could not be looked at counts in any case, and before what was found."""
    for each in reports:
        if each.unseen is not None:
            yield exit_code(each.unseen)
        elif (strict and each.errors) or (fail_on_warn and each.warnings):
            yield VALIDATION


def profile_of(profiles: Mapping[str, Mapping[str, str]], name: str | None, rules: str | None) -> Profile:
    """Make the profile of `--profile` and `--rules`; raises SettingsError if there is none, or if it or any of flujo.toml is invalid."""
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


def _show(reports: Sequence[ValidationReport], fixed: Mapping[str, _Fixed], *, in_json: bool) -> None:
    if in_json:
        shapes = [
            {
                "target": each.target,
                "valid": each.is_valid,
                "findings": [asdict(finding) for finding in each.findings],
                **(fixed[each.target].shape() if fixed else {}),
            }
            for each in reports
        ]
        show_json(shapes[0] if len(shapes) == 1 else shapes)
        return
    for each in reports:
        for finding in each.findings:
            show_value(printable(str(finding)))
        counts = {"error": len(each.errors), "warning": len(each.warnings)}
        found = " and ".join(counted(number, level) for level, number in counts.items() if number)
        say(f"{each.target}: {found or 'no problems found'}")


def _show_rules(*, in_json: bool) -> None:
    if in_json:
        show_json([{"rule": name, "severity": rule.severity, "what": rule.what} for name, rule in RULES.items()])
        return
    width = max(map(len, RULES))
    for name, rule in RULES.items():
        show_value(f"{name:<{width}}  {rule.severity:<7}  {rule.what}")


def _check_fix_options(targets: Sequence[str], *, fix: bool, dry_run: bool, yes: bool, in_json: bool) -> None:
    """Raise UsageError for options that exclude each other, and for targets that cannot be fixed."""
    if (fix and dry_run) or (yes and not fix):
        either = "give either --fix, which writes, or --fix-dry-run, which does not"
        raise click.UsageError(f"{either}; --yes works only with --fix")
    if fix and in_json and not yes:
        why = "--fix asks before it writes, which JSON output does not allow"
        raise click.UsageError(f"{why}: add --yes, or use --fix-dry-run")
    others = [each for each in targets if not is_file(each)]
    if others and (fix or dry_run):
        raise click.UsageError(f"'{others[0]}' is not a blueprint file; only blueprint files can be fixed")


def _fixed(target: str, *, shows: bool, asks: bool, writes: bool, allowed: Sequence[str], profile: Profile) -> _Fixed:
    try:
        data, mended = autofix_file(target, allowed=allowed, profile=profile)
    except BlueprintError:
        return _Fixed()
    if not mended.findings:
        say(f"{target}: no finding can be fixed automatically")
        return _Fixed()
    mark = data[: len(BOM_UTF8)] if data.startswith(BOM_UTF8) else b""
    diff = _diff(target, data[len(mark) :].decode(), mended.text)
    if shows:
        show_value(diff.rstrip("\n"))
    count = counted(len(mended.findings), "correction")
    advice = "--fix asks before it writes, and stdin is not a terminal: add --yes"
    is_written = writes and (not asks or is_wanted(f"write {count} into {target}?", advice))
    if is_written:
        _write(target, data, mark + mended.text.encode())
        say(f"{target}: {count} written")
    return _Fixed(mended.findings, diff, is_written)


def _diff(target: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(list(StringIO(before)), list(StringIO(after)), target, target)
    return "".join(each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in lines)


def _write(target: str, before: bytes, after: bytes) -> None:
    """Write a file as a whole or not at all, even if the disk is full or the machine crashes; links, owner and mode are preserved."""
    file = Path(target).resolve()
    try:
        with file.open("r+b") as opened:  # a rename would replace a read-only file
            if opened.read() != before:
                what = f"{target} was changed after it was read and has been left unchanged"
                raise click.UsageError(f"{what}: run this command again")
            _replace(file, after, os.fstat(opened.fileno()))
    except OSError as error:
        raise click.FileError(target, error.strerror) from error


def _replace(file: Path, data: bytes, like: os.stat_result) -> None:
    with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as draft:
        try:
            draft.write(data)
            draft.flush()
            os.fchown(draft.fileno(), like.st_uid, like.st_gid)
            os.fchmod(draft.fileno(), stat.S_IMODE(like.st_mode))
            os.fsync(draft.fileno())
            Path(draft.name).replace(file)
        except BaseException:
            Path(draft.name).unlink()
            raise
