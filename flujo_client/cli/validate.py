"""`flujo validate`: everything that is wrong with a pipeline, at once, and before anything is sent. Needs no services and no worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

import click

from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.finding import nearest
from flujo_client.blueprint.rules.table import RULES, Profile, checked
from flujo_client.blueprint.validate import validate
from flujo_client.cli.fixing import Fixed, fix_files, how_to_fix
from flujo_client.cli.format import counted, printable
from flujo_client.cli.output import OK, VALIDATION, exit_code, say, show_json, show_value
from flujo_client.config.manager import ConfigManager
from flujo_client.config.toml_positions import read
from flujo_client.contract.validation import ValidationReport
from flujo_client.errors import SettingsError


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
        how = how_to_fix(fix=fix, dry_run=fix_dry_run, yes=yes, in_json=in_json)
        fixed = fix_files(targets, how, allowed=settings.allowed_imports, profile=weights) if how else {}
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
        is_file = rules not in profiles and (File(rules).exists() or rules.endswith(".toml"))
        tables.append(checked(read(File(rules)).tree, rules) if is_file else _profile(profiles, rules))
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


def _show(reports: Sequence[ValidationReport], fixed: Mapping[str, Fixed], *, in_json: bool) -> None:
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
    findings = [dataclasses.asdict(each) for each in report.findings]
    return {"target": report.target, "valid": report.is_valid, "findings": findings}


def _show_rules(*, in_json: bool) -> None:
    if in_json:
        show_json([{"rule": name, "severity": rule.severity, "what": rule.what} for name, rule in RULES.items()])
        return
    width = max(map(len, RULES))
    for name, rule in RULES.items():
        show_value(f"{name:<{width}}  {rule.severity:<7}  {rule.what}")
