"""V-A: agents. V-F1: fallbacks. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from flujo_client.blueprint.finding import Path, shown
from flujo_client.blueprint.rules.document_index import Data, DocumentIndex, StepNode, agents_of, texts_in
from flujo_client.blueprint.rules.outputs import is_background
from flujo_client.blueprint.rules.table import RuleFinding
from flujo_client.contract.providers import missing_for, misspelt_provider
from flujo_client.pipeline.agents import is_made_here
from flujo_client.plan.kinds import STEP

NO_PACKAGE: Final = "V-A9"
_MODEL: Final = re.compile(r"[\w.-]+:\S.*|test\Z")
_PROVIDERS: Final = {"gpt": "openai", "o1": "openai", "o3": "openai", "claude": "anthropic", "gemini": "google"}
_STORE: Final = frozenset({"sink_to", "updates_context", "plugins", "validators"})
"""Keys of a step by which its answer is stored, or judged."""
_MOST: Final = {"timeout": 86_400, "timeout_s": 86_400, "max_retries": 20, "temperature": 2}
_MEANT: Final = {
    "timeout": "it is in seconds",
    "timeout_s": "it is in seconds",
    "max_retries": "each is a call to the model",
    "temperature": "models take 0 to 2",
}


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every agent of a document, and every step that has one."""
    yield from _unused(doc)
    for path, agent in agents_of(doc):
        yield from wrong_model(agent.get("model"), (*path, "model"))
        yield from _bounds(agent, path)
        yield from _bounds(agent.get("model_settings"), (*path, "model_settings"))
        yield from _tools(agent, path)
    for step in doc.steps:
        yield from _bounds(step.data.get("config"), (*step.path, "config"))
        yield from _duplicate_schema(doc, step)
        yield from _lost(doc, step)
        yield from _fallback(step)


def _unused(doc: DocumentIndex) -> Iterator[RuleFinding]:
    used = {text for _, text in texts_in(dict(doc.document), ()) if text.startswith("agents.")}
    for name in doc.table("agents"):
        if f"agents.{name}" not in used:
            yield RuleFinding("V-A4", (*doc.path, "agents", name), f"'{shown(name)}' is not used by any step")


def wrong_model(model: Any, path: Path) -> Iterator[RuleFinding]:
    """Find what a model's name lacks: a provider, or the package that this environment needs for it."""
    if not isinstance(model, str) or not model.strip():
        return
    if not _MODEL.match(model):
        provider = next((each for begins, each in _PROVIDERS.items() if model.startswith(begins)), None)
        message = f"model '{shown(model)}' does not name a provider"
        near = f"{provider}:{shown(model)}" if provider else None
        yield RuleFinding("V-A6", path, message, "write provider:model, such as openai:gpt-5", near)
    elif not is_made_here(model) and (misspelt := misspelt_provider(model)):
        yield RuleFinding("V-A6", path, f"model {misspelt}")
    elif needed := missing_for(model):
        message = f"'{shown(model)}' needs the package '{needed.module}', which is not installed here"
        yield RuleFinding(NO_PACKAGE, path, message, f"where workers run: {needed.install}")


def _bounds(given: Any, path: Path) -> Iterator[RuleFinding]:
    for key, most in _MOST.items():
        value = given.get(key) if isinstance(given, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            yield RuleFinding("V-A7", (*path, key), f"{value:g} is more than {most:,}; {_MEANT[key]}")


def _tools(agent: Data, path: Path) -> Iterator[RuleFinding]:
    tools = agent.get("tools")
    given = [str(each) for each in tools] if isinstance(tools, list) else []
    names = [each.rpartition(":")[2].rpartition(".")[2] for each in given]
    for name, count in Counter(names).items():
        if count > 1:
            last = len(names) - 1 - names[::-1].index(name)
            yield RuleFinding(
                "V-A8",
                (*path, "tools", last),
                f"{count} tools are named '{shown(name)}'; a model tells tools apart by name",
            )


def _duplicate_schema(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    found = doc.agent(step) if step.spec is STEP else None
    if found is not None and "output_schema" in step.data and "output_schema" in found[1]:
        message = "its agent has an output_schema too, which has no effect here; keep one"
        yield RuleFinding("V-A3", (*step.path, "output_schema"), message)


def _lost(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Find an answer that the next step leaves out, that is not stored, and that nothing reads by name."""
    before = doc.before(step)
    own = doc.texts_of(step) if "input" in step.data else ()
    if before is None or not own or before.spec is not STEP or doc.agent(before) is None or is_background(before):
        return
    if any(names[0] in ("previous_step", "this", "context") for text in own for names in text.names):
        return
    if _STORE & before.data.keys() or before.name in doc.read_by_name:
        return
    if any(each.table("loop").get("conversation") is True for each in step.around()):
        return  # the conversation has it as a turn
    message = f"no step gets the answer of '{shown(before.name)}': the next step's `input` leaves it out"
    yield RuleFinding("V-A5", before.path, message, "read it as {{ previous_step }}, or store it with sink_to")


def _fallback(step: StepNode) -> Iterator[RuleFinding]:
    other = step.data.get("fallback")
    if step.spec is not STEP or not isinstance(other, dict) or other.get("kind", STEP.yaml_name) != STEP.yaml_name:
        return
    same = ("uses", "agent", "input", "output_schema", "processing", "plugins", "validators")
    if all(step.data.get(key) == other.get(key) for key in same) and _tries(step.data) == _tries(dict(other)):
        message = f"it repeats what has just failed, the same agent with the same input; `config.max_retries` tries '{shown(step.name)}' again"
        yield RuleFinding("V-F1", (*step.path, "fallback"), message)


def _tries(step: Data) -> Any:
    config = step.get("config")
    return {key: each for key, each in config.items() if key != "max_retries"} if isinstance(config, dict) else {}
