"""The main job: audit the licences of the installed distributions, in one run.

    list distributions → audit each, 16 at a time → group by category → ask a person, if any licence is proprietary or unknown

    audit one:  read metadata
                → until sure: an agent judges, AROS makes its answer valid or has it asked again, and a validator checks that
                              its quote is in the metadata; not sure, it is asked again with the licence files' texts
                → what follows: for copyleft its duties, for what a person should see a note why, else nothing

With the setting `demo_model` (FLUJO_DEMO_MODEL) the agent asks that model; without it a scripted one that derives its answer from
the metadata it was sent, and writes it the untidy way models do, so the report is true either way. What fails for one distribution is
shown in the report. The demo does not wait for an answer: the question gets its default after a second; `ASKED` waits.
`license_audit.yaml` is the same pipeline as a blueprint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flujo_demo.license_facts import (
    DistributionMetadata,
    LicenseVerdict,
    derive_verdict,
    duties,
    evidence_holds,
    installed_distributions,
    read_metadata,
)
from flujo_demo.ruling import BY_DEFAULT, Ruling, ask_about
from flujo_demo.untidy import untidy_reply
from pydantic import BaseModel

from flujo_client.config.manager import ConfigManager
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.parallel import BranchFailureStrategy, MergeStrategy
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.scripted import scripted_model

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from flujo_client.contract.results import StepResult

REFERENCE = "flujo_demo.license_audit:pipeline"
ASKED = "flujo_demo.license_audit:asked"
"""The same audit, whose question stays open until a person answers."""
EACH = "audit each"
SURE = 0.7
ANSWER_WITHIN_S = 1.0
TO_APPROVE = ("proprietary", "unknown")
FAILED = "failed"
PROMPT = f"""You audit software licences. You are given the metadata of one Python distribution as JSON.
Say which licence it is under as an SPDX expression (NOASSERTION if the metadata do not tell), which category that is
(permissive, copyleft, proprietary or unknown), how sure you are from 0 to 1, and quote the evidence word for word from the
metadata. First you see no licence files. Below {SURE} you are asked again, with the files' texts: answer so if you need them,
as when only classifiers name the licence, or when the name leaves open which version or variant it is."""


class AuditFinding(BaseModel):
    """The result for one distribution. `note` is what to do; without a verdict the audit failed, and it says why."""

    distribution: str
    version: str = ""
    verdict: LicenseVerdict | None = None
    note: str = ""

    @property
    def category(self) -> str:
        """Return the verdict's category, or `failed`."""
        return self.verdict.category if self.verdict else FAILED


class Audit(BaseModel):
    """The facts of the run; each branch has a copy, and adds its findings."""

    names: list[str] = []
    metadata: DistributionMetadata | None = None
    verdict: LicenseVerdict | None = None
    groups: dict[str, list[AuditFinding]] = {}
    ruling: Ruling | None = None


class Audited(BaseModel):
    """The findings by category, and what was decided about those that need approval; None where there are none."""

    groups: dict[str, list[AuditFinding]]
    ruling: Ruling | None = None


def list_distributions(wanted: list[str] | None) -> list[str]:
    """Audit what is asked for, else everything that is installed."""
    return wanted or installed_distributions()


# --- one distribution ----------------------------------------------------------------------------------------------


def offline_model() -> Model[Any]:
    """Return the model that is asked when none is set: it knows only what it is sent."""

    def answer(prompt: str) -> str:
        sent, end = json.JSONDecoder().raw_decode(prompt)
        metadata = DistributionMetadata.model_validate(sent)
        guidance = prompt[end:]  # behind the JSON after a failed attempt
        return untidy_reply(
            derive_verdict(metadata), f"{metadata.name} {len(metadata.license_files)}", asked_again=bool(guidance)
        )

    return scripted_model(answer, name="licence-facts")


def quote_holds(verdict: LicenseVerdict, *, context: Audit) -> tuple[bool, str]:
    """Refuse a verdict whose evidence is not in the metadata."""
    is_quoted = context.metadata is not None and evidence_holds(context.metadata, verdict)
    return is_quoted, f"the quoted evidence is not in the metadata: {verdict.evidence!r}"


def without_files(metadata: DistributionMetadata, _context: Audit) -> DistributionMetadata:
    """Return what is judged first: the fields, which are short."""
    return metadata.model_copy(update={"license_files": ()})


def with_files(_verdict: LicenseVerdict, context: Audit, _index: int) -> DistributionMetadata | None:
    """Return what is judged when that was not enough."""
    return context.metadata


def is_sure(verdict: LicenseVerdict, _context: Audit) -> bool:
    return verdict.confidence >= SURE


def what_follows(verdict: LicenseVerdict, _context: Audit) -> str:
    """Choose the path; `nothing` has none."""
    if verdict.category == "copyleft":
        return "duties"
    return "nothing" if verdict.category == "permissive" and verdict.confidence >= SURE else "attention"


def attention(verdict: LicenseVerdict) -> str:
    """Return why a person should look at it."""
    actions = {
        "proprietary": "not free software: have a lawyer read its terms",
        "unknown": "unknown licence: ask its authors",
    }
    return actions.get(verdict.category, "the evidence does not settle it: check its licence files")


def nothing(_: Any) -> str:
    """Return the note for all other licences."""
    return ""


def finding(note: str, _path: str, context: Audit) -> AuditFinding:
    """Return what a branch answers, whichever path it took."""
    assert context.metadata is not None
    return AuditFinding(
        distribution=context.metadata.name, version=context.metadata.version, verdict=context.verdict, note=note
    )


demo_model = ConfigManager().settings().demo_model

auditor = make_agent_async(demo_model or offline_model, PROMPT, LicenseVerdict, name="auditor")

judge = Step(
    "judge",
    auditor,
    config=StepConfig(max_retries=2, backoff=Backoff(base_s=0.2)),
    processing={
        "structured_output": "auto" if demo_model else "off",
        "aop": "full",
        "coercion": {"tolerant_level": 1, "allow": {"number": ["str->float"]}},
    },
    validators=[quote_holds],
    sink_to="verdict",
)

audit_one = Pipeline(
    [
        Step("read metadata", read_metadata, sink_to="metadata"),
        Step.loop_until(
            "until sure",
            judge,
            is_sure,
            max_loops=2,
            initial_input_to_loop_body_mapper=without_files,
            iteration_input_mapper=with_files,
        ),
        Step.branch_on(
            "what follows",
            what_follows,
            {"duties": Step("work out duties", duties), "attention": Step("call for attention", attention)},
            default_branch_pipeline=Step("no obligations", nothing),
            branch_output_mapper=finding,
        ),
    ]
)


# --- all of them ---------------------------------------------------------------------------------------------------


def group(results: list[AuditFinding | StepResult], *, context: Audit) -> dict[str, list[AuditFinding]]:
    """Sort the findings into categories. A branch that failed has left its StepResult in the place of its finding."""
    groups: dict[str, list[AuditFinding]] = {}
    for name, result in zip(context.names, results, strict=True):
        found = (
            result
            if isinstance(result, AuditFinding)
            else AuditFinding(distribution=name, note=result.feedback or FAILED)
        )
        groups.setdefault(found.category, []).append(found)
    return groups


# --- a person ------------------------------------------------------------------------------------------------------


def to_approve(groups: Mapping[str, Sequence[AuditFinding]]) -> list[AuditFinding]:
    """Return the findings that a person is asked about."""
    return [each for category in TO_APPROVE for each in groups.get(category, ())]


def who_decides(groups: dict[str, list[AuditFinding]], _context: Audit) -> str:
    """Choose the path: `person` if there is anything to ask."""
    return "person" if to_approve(groups) else "nobody"


def wording(groups: dict[str, list[AuditFinding]]) -> str:
    """Write the question for the person."""
    return ask_about(to_approve(groups))


def question(groups: dict[str, list[AuditFinding]], _context: Audit) -> str:
    """Write the question for the step that asks."""
    return wording(groups)


def audited(_output: Any, _path: str, context: Audit) -> Audited:
    """Return the answer of the run."""
    return Audited(groups=context.groups, ruling=context.ruling)


approve = HumanInTheLoopStep(
    "approve",
    question,
    input_schema=Ruling,
    sink_to="ruling",
    expires_s=ANSWER_WITHIN_S,
    on_expiry="default",
    default=BY_DEFAULT,
)


def ruled_by(person: Step) -> Step:
    """Ask this person, if there is anything to ask."""
    return Step.branch_on(
        "who decides",
        who_decides,
        {"person": person},
        default_branch_pipeline=Step("nothing to decide", nothing),
        branch_output_mapper=audited,
    )


# --- all of it -------------------------------------------------------------------------------------------------------

grouped = Pipeline(
    [
        Step("list distributions", list_distributions, sink_to="names"),
        Step.map_over(
            EACH,
            audit_one,
            iterable_input="names",
            max_concurrency=16,
            context_include_keys=[],
            merge_strategy=MergeStrategy.NO_MERGE,
            on_branch_failure=BranchFailureStrategy.IGNORE,
        ),
        Step("group", group, sink_to="groups"),
    ],
    name="license-audit",
    context_model=Audit,
)
pipeline = grouped >> ruled_by(approve)
asked = grouped >> ruled_by(replace(approve, expires_s=None, on_expiry="fail", default=None))
