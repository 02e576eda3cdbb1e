"""The main job: audit the licence of one installed distribution.

    read its metadata → an agent says what the licence is, with a quote → a validator checks that the quote stands in the metadata →
    the verdict is merged into the run's context

With the setting `demo_model` (FLUJO_DEMO_MODEL) the agent asks that model; without it a scripted one that derives its answer from
the metadata it was sent, so the report is true either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from flujo_client.config import ConfigManager
from flujo_client.pipeline.compose import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.scripted import scripted_model
from flujo_worker.demo.license_facts import (
    DistributionMetadata,
    LicenseVerdict,
    derive_verdict,
    evidence_stands,
    read_metadata,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model

REFERENCE = "flujo_worker.demo.license_audit:pipeline"
PROMPT = """You audit software licences. You are given the metadata of one Python distribution as JSON.
Say which licence it is under as an SPDX expression (NOASSERTION if the metadata do not tell), which category that is
(permissive, copyleft, proprietary or unknown), how sure you are from 0 to 1, and quote the evidence word for word from the
metadata."""


class AuditContext(BaseModel):
    """What one audit has found."""

    metadata: DistributionMetadata | None = None
    verdict: LicenseVerdict | None = None
    attention: bool = False


def offline_model() -> Model[Any]:
    """The model that is asked when none is set: it knows only what it is sent."""
    return scripted_model(
        lambda prompt: derive_verdict(DistributionMetadata.model_validate_json(prompt)), name="licence-facts"
    )


def quote_stands(verdict: LicenseVerdict, *, context: AuditContext) -> tuple[bool, str]:
    """Refuse a verdict whose evidence is not in the metadata."""
    stands = context.metadata is not None and evidence_stands(context.metadata, verdict)
    return stands, f"the quoted evidence is not in the metadata: {verdict.evidence!r}"


def conclude(verdict: LicenseVerdict) -> dict[str, Any]:
    """What the audit says of the verdict: whether a person should look at it."""
    return {"attention": verdict.category in ("proprietary", "unknown")}


pipeline = Pipeline(
    [
        Step("read metadata", read_metadata, sink_to="metadata"),
        Step(
            "judge",
            make_agent_async(
                ConfigManager().settings().demo_model or offline_model, PROMPT, LicenseVerdict, name="auditor"
            ),
            config=StepConfig(max_retries=2),
            validators=[quote_stands],
            sink_to="verdict",
        ),
        Step("conclude", conclude, updates_context=True),
    ],
    name="license-audit",
    context_model=AuditContext,
)
