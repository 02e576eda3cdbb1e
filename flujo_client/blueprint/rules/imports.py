"""V-I: imports, and the steps that run them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flujo_client.blueprint.finding import Path, shown
from flujo_client.blueprint.rules.table import RuleFinding
from flujo_client.plan.kinds import NESTED

if TYPE_CHECKING:
    from flujo_client.blueprint.rules.document_index import DocumentIndex, StepNode


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every import and every step that runs one."""
    used = {step.data["uses"].partition(".")[2] for step in doc.steps if step.spec is NESTED}
    for name in doc.table("imports"):
        if name not in used:
            yield RuleFinding("V-I4", (*doc.path, "imports", name), f"'{shown(name)}' is not run by any step")
    for step in doc.steps:
        if step.spec is NESTED:
            yield from _outputs(step)
            yield from _idle(step)


def _outputs(step: StepNode) -> Iterator[RuleFinding]:
    seen: set[str] = set()
    for path, parent in _targets(step):
        if parent in seen:
            yield RuleFinding(
                "V-I2", path, f"'{shown(parent)}' receives two outputs, and only the last one takes effect"
            )
        seen.add(parent)


def _targets(step: StepNode) -> Iterator[tuple[Path, str]]:
    outputs, path = step.table("config").get("outputs"), (*step.path, "config", "outputs")
    if isinstance(outputs, Mapping):
        yield from (((*path, key), each) for key, each in outputs.items() if isinstance(each, str))
    elif isinstance(outputs, list):
        for index, each in enumerate(outputs):
            if isinstance(each, Mapping) and isinstance(each.get("parent"), str):
                yield (*path, index, "parent"), each["parent"]


def _idle(step: StepNode) -> Iterator[RuleFinding]:
    config = step.table("config")
    if "default" in config and config.get("on_failure") != "continue_with_default":
        yield _no_effect(step, "default", "on_failure: continue_with_default")
    if "input_scratchpad_key" in config and config.get("input_to", "initial_prompt") == "initial_prompt":
        yield _no_effect(step, "input_scratchpad_key", "input_to: import_artifacts, or both")


def _no_effect(step: StepNode, key: str, needs: str) -> RuleFinding:
    return RuleFinding("V-I5", (*step.path, "config", key), "it has no effect here", f"it works only with {needs}")
