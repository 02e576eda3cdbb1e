"""Every rule: its id, what it finds, and whether that refuses the blueprint.

It must not look at a document. In: nothing; out: `RULES`, of which the reference and `flujo validate --list-rules` are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.blueprint.finding import Path

Severity: TypeAlias = Literal["error", "warning"]


class Rule(NamedTuple):
    """What a rule finds, and how bad that is where the finding itself does not say."""

    what: str
    severity: Severity = "error"


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What a rule found, at a path of its document."""

    rule: str
    path: Path
    message: str
    allowed: str | None = None
    nearest: str | None = None
    severity: Severity | None = None


READER: Final[Mapping[str, Rule]] = {
    "Y-SYNTAX": Rule("it is no YAML, no UTF-8, or YAML that blueprints do not use"),
    "Y-LIMIT": Rule("it is too large, too deep, or has too many values, those that aliases repeat counted each time"),
    "Y-TAG": Rule("a tag, such as `!!python/object`: blueprints make no objects"),
    "Y-DUPLICATE": Rule("a key stands twice in one mapping"),
    "Y-KEY": Rule("a key is not known there"),
    "Y-TYPE": Rule("a value is of a kind that the key does not take"),
    "Y-VALUE": Rule("a value is of the right kind, and none that the key takes"),
    "Y-MISSING": Rule("a key is needed and not there"),
    "Y-UNSUPPORTED": Rule(
        "a key or kind of the original that this engine does not have; what to write instead is told"
    ),
    "Y-REFERENCE": Rule("a reference names nothing, lies outside the allowed imports, or names the wrong thing"),
    "Y-FILE": Rule("a file cannot be read, or lies where no blueprint may read"),
    "Y-PROCESSING": Rule("a `processing` block cannot be (M-148)"),
    "Y-PIPELINE": Rule("the pipeline that it makes cannot run, for a reason that has no rule of its own"),
}
"""What reading finds, before any rule is asked."""

_VALIDATION: Final[Mapping[str, Rule]] = {
    "V-A1": Rule("a step has no agent"),
    "V-A2": Rule("an agent's name stands for none of the document, or its reference for no agent"),
    "V-A3": Rule("a step and its agent's entry both have an output_schema, and the step's counts", "warning"),
    "V-A4": Rule("an agent is declared, and nothing uses it", "warning"),
    "V-A5": Rule("nobody gets what a model answers: the next step's `input` leaves it out", "warning"),
    "V-A6": Rule("a model's name has no provider"),
    "V-A7": Rule(
        "a bound that nobody means: a timeout of days, dozens of retries, a temperature no model takes", "warning"
    ),
    "V-A8": Rule("two tools of one agent have the same name", "warning"),
    "V-F1": Rule("a fallback does what has just failed over again, or leads back to its own step", "warning"),
    "V-P1": Rule("branches write the same field of the context, and the merge has to refuse what differs", "warning"),
    "V-P2": Rule("`field_mapping` or `context_include_keys` names no branch, or no field of the context"),
    "V-P3": Rule("a branch reads a field that `context_include_keys` keeps from it", "warning"),
    "V-S1": Rule("a schema is no JSON Schema"),
    "V-S2": Rule("a schema that no value fits"),
    "V-S3": Rule(
        "a schema that tells the model too little: lists of anything, required keys it does not describe", "warning"
    ),
    "V-L1": Rule("a loop's end does not depend on anything that its body changes", "warning"),
    "V-L2": Rule(
        "what a loop says of its conversation counts for nothing, names no step of its body that says something, or cannot be kept"
    ),
    "V-CF1": Rule("a branch that the condition never chooses, or an answer of it that no branch is for", "warning"),
    "V-EX1": Rule("an expression cannot be read"),
    "V-SM1": Rule("a state that is none, that nothing leads to, or that leads nowhere; an end that cannot be reached"),
    "V-C1": Rule("a path in the context leads to no field of its model, or there is no context"),
    "V-C2": Rule("`updates_context` on an output that is no mapping"),
    "V-C3": Rule("an output and the field of the context that receives it are of different types", "warning"),
    "V-CTX1": Rule("a template or expression reads a field that the context's model does not have"),
    "V-CTX2": Rule(
        "a template or expression reads the context or other steps, and there is no context for that", "warning"
    ),
    "CTX-OUTPUT-KEYS": Rule("keys that `updates_context` would merge are no fields of the context's model"),
    "V-I1": Rule("an import cannot be found"),
    "V-I2": Rule("an import's `outputs` lead from or to no field, or two of them to the same"),
    "V-I3": Rule("imports lead in a circle, or too far"),
    "V-I4": Rule("an import is declared, and no step runs it", "warning"),
    "V-I5": Rule("an option of an import has no effect beside the others", "warning"),
    "V-I6": Rule("an import inherits a context that is not what it asks for"),
    "V-T1": Rule("a template cannot be read"),
    "V-T2": Rule("`this` outside a map: there it is only what comes in", "warning"),
    "V-T3": Rule(
        "`.output` too much or too little: `previous_step` is the output, `steps.x` has it under `.output`", "warning"
    ),
    "V-T4": Rule("`steps.x`, and no step has that name"),
    "V-T5": Rule("`steps.x` where that step cannot have run yet", "warning"),
    "V-T6": Rule("a field of an output that its schema does not have"),
    "V-T7": Rule("`{% … %}` in a template: blocks are written `{{#if …}}` and `{{#each …}}`", "warning"),
    "HITL-NESTED-001": Rule(
        "a person is asked where no answer can come or count: an import that asks nobody, a cached step"
    ),
}

RULES: Final[Mapping[str, Rule]] = {**READER, **dict(sorted(_VALIDATION.items()))}
"""Every rule, by its id."""
