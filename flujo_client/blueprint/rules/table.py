"""Every rule: its id, the fault it finds, and whether the fault rejects the blueprint; and profiles, by which a project weighs rules.

A profile can hide a warning, or make it an error. It cannot hide a fault that rejects a pipeline: `flujo validate` would pass a pipeline that
`flujo enqueue` rejects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.contract.validation import Finding, ValidationReport
from flujo_client.errors import SettingsError

Severity: TypeAlias = Literal["error", "warning"]


class Rule(NamedTuple):
    what: str
    severity: Severity = "error"


class RuleFinding(NamedTuple):
    rule: str
    path: Path
    message: str
    allowed: str | None = None
    nearest: str | None = None
    severity: Severity | None = None


_READER: Final[Mapping[str, str]] = {
    "Y-SYNTAX": "it is not UTF-8, not YAML, or YAML that blueprints do not use",
    "Y-LIMIT": "it is too large, too deep, or has too many values, with aliases counted each time",
    "Y-TAG": "a tag, such as `!!python/object`: blueprints do not create objects",
    "Y-DUPLICATE": "a key is used twice in one mapping",
    "Y-KEY": "a key is not known there",
    "Y-TYPE": "a value has a type that the key does not accept",
    "Y-VALUE": "a value has the right type but is not one that the key accepts",
    "Y-MISSING": "a required key is missing",
    "Y-UNSUPPORTED": "a key of the original that this engine does not have; the message names its replacement",
    "Y-REFERENCE": "a reference names nothing, lies outside the allowed imports, or names the wrong thing",
    "Y-FILE": "a file cannot be read, or is where blueprints may not read",
    "Y-PROCESSING": "a `processing` block is not valid",
    "Y-PIPELINE": "the pipeline that it makes cannot run, for a reason without a separate rule",
}
"""The faults that reading finds, before any rule is applied."""

_ERRORS: Final[Mapping[str, str]] = {
    "V-A1": "a step has no agent",
    "V-A2": "an agent's name is not in the document, or its reference does not lead to an agent",
    "V-A6": "a model's name has no provider, or one that is misspelt",
    "V-A10": "a step's function has a parameter without a default that nothing fills",
    "V-P2": "`field_mapping` or `context_include_keys` names a branch or field of the context that does not exist",
    "V-S1": "a schema is not a JSON Schema",
    "V-S2": "a schema that no value can meet",
    "V-S4": "a step's function takes another type than the step before returns",
    "V-S5": "a step's output type has values that cannot be stored: a secret, or a class that workers cannot rebuild",
    "V-L2": "a loop's conversation settings have no effect, name a step that adds no turns, or cannot be stored",
    "V-D1": "a durable step's agent has what cannot be on record: toolsets without an id or two of one, another engine, tools that steer their run",
    "V-EX1": "an expression cannot be read",
    "V-SM1": "a state that does not exist, cannot be reached or has no way out; an end that cannot be reached",
    "V-C1": "a path in the context leads to a field that its model does not have, or there is no context",
    "V-C2": "`updates_context` on an output that is not a mapping",
    "V-CTX1": "a template or expression reads a field that the context's model does not have",
    "CTX-OUTPUT-KEYS": "`updates_context` would merge keys that the context's model does not have",
    "V-I1": "an import cannot be found",
    "V-I2": "an import's `outputs` name a field that does not exist, or the same target twice",
    "V-I3": "imports form a cycle, or are too deep",
    "V-I6": "an import inherits a context of another type than it needs",
    "V-T1": "a template cannot be read",
    "V-T4": "`steps.x`, but no step has that name",
    "V-T6": "a field of an output that its schema does not have",
    "V-T8": "an expression or a template uses a filter that `validation.enabled_template_filters` does not have",
    "HITL-NESTED-001": "a person is asked where an answer cannot arrive or has no effect: in an import with `propagate_hitl: false`, in a cached step",
}
"""The faults that refuse a blueprint."""

_WARNINGS: Final[Mapping[str, str]] = {
    "V-A3": "a step and its agent's entry both have an output_schema, and the step's wins",
    "V-A4": "an agent is declared, but no step uses it",
    "V-A5": "no step gets a model's answer: the next step's `input` leaves it out",
    "V-A7": "a limit that is probably a mistake: a timeout of days, dozens of retries, a temperature no model takes",
    "V-A8": "two tools of one agent have the same name",
    "V-A9": "a model's provider needs a package that is not installed here",
    "V-F1": "a fallback repeats what has just failed, or leads back to its own step",
    "V-P1": "branches write the same field of the context, and the merge rejects different values",
    "V-P3": "a branch reads a field that `context_include_keys` excludes",
    "V-S3": "a schema that tells the model too little: lists of anything, required keys it does not describe",
    "V-L1": "the end of a loop does not depend on anything that its body changes",
    "V-CF1": "a branch that the condition never chooses, or a result of it that has no branch",
    "V-D2": "a durable step does something again, or loses it, after a crash: an effect that is not declared, changed deps",
    "V-C3": "an output and the field of the context that receives it are of different types",
    "V-CTX2": "a template or expression reads the context or other steps, and there is no context for that",
    "V-I4": "an import is declared, but no step runs it",
    "V-I5": "an option of an import has no effect in combination with the others",
    "V-T2": "`this` outside a map, where it is the same as `previous_step`",
    "V-T3": "`.output` is superfluous or missing: `previous_step` is the output, `steps.x` has it under `.output`",
    "V-T5": "`steps.x` where that step cannot have run yet",
    "V-T7": "`{% … %}` in a template: blocks are written `{{#if …}}` and `{{#each …}}`",
}

RULES: Final[Mapping[str, Rule]] = {rule: Rule(what) for rule, what in _READER.items()} | {
    rule: Rule(what, "warning" if rule in _WARNINGS else "error")
    for rule, what in sorted({**_ERRORS, **_WARNINGS}.items())
}
"""Every rule, by its id."""


WEIGHTS: Final = ("off", "warn", "error")


@dataclass(frozen=True, slots=True)
class Profile:
    weights: tuple[Mapping[str, str], ...] = ()
    """Tables of weights by rule or pattern, in the order of precedence; in each, an exact name counts before the first matching pattern."""

    def weight(self, rule: str) -> str | None:
        """Return the weight of a rule; None if the profile does not set it."""
        for table in self.weights:
            for pattern in (rule, *table):
                if pattern in table and fnmatchcase(rule, pattern):
                    return table[pattern]
        return None

    def applied(self, report: ValidationReport) -> ValidationReport:
        """Return a report without what is off, and with what is to be an error as one."""
        return replace(report, findings=tuple(each for given in report.findings if (each := self._taken(given))))

    def kept(self, report: ValidationReport) -> list[str]:
        """List the rules of a report that stay errors although the profile lowers them."""
        return sorted({each.rule for each in report.errors if self.weight(each.rule) in ("off", "warn")})

    def _taken(self, finding: Finding) -> Finding | None:
        weight = self.weight(finding.rule)
        if finding.severity == "error" or weight in (None, "warn"):
            return finding
        return None if weight == "off" else replace(finding, severity="error")


def checked(weights: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Return a valid table of weights; `where` names it in errors. Raises SettingsError for an unknown rule or weight."""
    for name, weight in weights.items():
        if weight not in WEIGHTS:
            near = nearest(weight, WEIGHTS)
            way_out = f"did you mean '{near}'?" if near else f"write one of {', '.join(WEIGHTS)}"
            raise SettingsError(f"{where}: {shown(name)}: '{shown(weight)}' is not a weight", suggestion=way_out)
        if not any(fnmatchcase(rule, name) for rule in RULES):
            near = nearest(name, RULES)
            way_out = f"did you mean '{near}'?" if near else "`flujo validate --list-rules` lists them"
            raise SettingsError(f"{where}: '{shown(name)}' is not a rule and matches none", suggestion=way_out)
    return weights
