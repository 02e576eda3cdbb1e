"""`flujo run --dry-run`: check a pipeline as `enqueue` does, and list its steps. Nothing is recorded, and no service is used."""

from __future__ import annotations

from flujo_client.cli.output import say, show_value
from flujo_client.config.manager import ConfigManager
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import bare, is_file, load_pipeline, with_reference_options
from flujo_client.plan.plan import Plan


def rehearse(reference: str, *, has_context: bool) -> None:
    """Check the pipeline and list its steps; raises what `enqueue` would."""
    allowed = ConfigManager().settings().allowed_imports
    if is_file(bare(reference)):
        pipeline = with_reference_options(Pipeline.from_yaml_file(bare(reference), allowed=allowed), reference)
    else:
        pipeline = load_pipeline(reference, allowed=allowed)
    check(pipeline, allowed=allowed, has_context=has_context or pipeline.context_model is not None)
    plan: Plan = compile_plan(pipeline)
    for path, step in walk(pipeline):
        show_value(f"{path}  {step.kind}")
    say(f"{plan.name} could be enqueued (fingerprint {plan.fingerprint[:12]}); nothing was run")
