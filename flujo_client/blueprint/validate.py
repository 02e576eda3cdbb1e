"""Validate a blueprint's file or text, a reference, or a pipeline: report all faults at once, warnings too, without raising."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as File
from typing import Any

from flujo_client.blueprint.autofix import Autofixed, autofix
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.finding import in_order
from flujo_client.blueprint.load import Loading, bytes_of
from flujo_client.blueprint.read import Source
from flujo_client.blueprint.rules.agents import wrong_model
from flujo_client.blueprint.rules.apply import apply_rules
from flujo_client.blueprint.rules.table import RULES, Profile
from flujo_client.contract.validation import Finding, ValidationReport
from flujo_client.errors import BlueprintError, PipelineError
from flujo_client.pipeline.check import findings_of
from flujo_client.pipeline.durable import durable_warnings
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import found_by, is_file, load_pipeline
from flujo_client.plan import kinds
from flujo_client.plan.identity import asks_a_model
from flujo_client.sizes import MAX_BLUEPRINT_BYTES


def validate(target: str, *, allowed: Sequence[str], include_imports: bool = True) -> ValidationReport:
    """Validate a blueprint's file, or the pipeline that `package.module:attribute` names; if it is missing, that is a finding."""
    try:
        found = bytes_of(File(target)) if is_file(target) else load_pipeline(target, allowed=allowed)
    except BlueprintError as error:
        return ValidationReport(target, error.findings, error)
    except PipelineError as error:
        finding = Finding("Y-REFERENCE", error.message, file=target, allowed=error.suggestion)
        return ValidationReport(target, (finding,), error)
    if not isinstance(found, bytes):
        return validate_pipeline(found, allowed=allowed, target=target, include_imports=include_imports)
    report = validate_text(found, allowed=allowed, target=target, name=File(target).stem, folder=File(target).parent)
    return report if include_imports else _own(report)


def autofix_file(file: str, *, allowed: Sequence[str], profile: Profile) -> tuple[bytes, Autofixed]:
    """Return a blueprint's text, and the fixed text, without fixes of imported files and for rules that the profile turns off."""
    data = bytes_of(File(file))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > MAX_BLUEPRINT_BYTES:
        return data, Autofixed("", ())

    def find(text: str) -> tuple[Finding, ...]:
        report = validate_text(text, allowed=allowed, target=file, name=File(file).stem, folder=File(file).parent)
        return tuple(each for each in profile.applied(report).findings if each.file == file)

    return data, autofix(text, find)


def validate_text(
    text: str | bytes,
    *,
    allowed: Sequence[str],
    target: str = "<text>",
    name: str | None = None,
    folder: File | None = None,
) -> ValidationReport:
    """Look at a blueprint's text; takes what `load_text` takes, and what findings call it."""
    loading = Loading(tuple(allowed))
    try:
        pipeline = loading.pipeline(text, file=target, name=name, folder=folder)
    except BlueprintError as error:
        return ValidationReport(target, in_order({*loading.findings, *error.findings}))
    return ValidationReport(target, in_order([*loading.findings, *_models(pipeline, target, allowed)]))


def validate_pipeline(
    pipeline: Pipeline, *, allowed: Sequence[str], target: str | None = None, include_imports: bool = True
) -> ValidationReport:
    """Validate a pipeline: by its blueprint if it was read from one, else by the blueprint that would describe it."""
    target = target or pipeline.name or "pipeline"
    if pipeline.blueprint is not None:
        report = validate_text(pipeline.blueprint, allowed=allowed, target=target)
        return report if include_imports else _own(report)
    found = findings_of(pipeline, allowed=allowed)
    findings = [Finding(each.rule, each.text, each.path or "", target) for each in found]
    if not findings:
        document = Writing().document(pipeline)
        if pipeline.context_model is None:
            del document["context_model"]  # a run that brings data has one
        findings += apply_rules(Source(document, {}, target), document, allowed=allowed)
        findings += _models(pipeline, target, allowed)
    elif not include_imports:
        nested = tuple(f"{path}/" for path, step in walk(pipeline) if step.spec is kinds.NESTED)
        findings = [each for each in findings if not each.key.startswith(nested)]
    report = ValidationReport(target, in_order(findings))
    return report if include_imports else _own(report)


def _models(pipeline: Pipeline, target: str, allowed: Sequence[str]) -> Iterator[Finding]:
    """Find what the models of agents made in Python lack; the rules look at those that a document declares."""
    for path, step in walk(pipeline):
        agent, _ = found_by(step.agent, allowed, "agent")
        for each in wrong_model(getattr(agent, "model", None) if asks_a_model(agent) else None, (path,)):
            more: Any = {"severity": RULES[each.rule].severity, "allowed": each.allowed, "nearest": each.nearest}
            yield Finding(each.rule, each.message, path, target, **more)
        for text in durable_warnings(
            step, agent, lambda tool: found_by(tool, allowed, "tool")[0], pipeline.context_model
        ):
            yield Finding("V-D2", text, path, target, severity=RULES["V-D2"].severity)


def _own(report: ValidationReport) -> ValidationReport:
    """Leave out what was found in imported blueprints."""
    own = (each for each in report.findings if each.file == report.target and not each.key.startswith("imports."))
    return ValidationReport(report.target, tuple(own))
