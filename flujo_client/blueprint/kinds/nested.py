"""An imported blueprint as a step."""

from collections.abc import Mapping
from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import PYTHON_AGENT
from flujo_client.blueprint.kind import EXECUTION_MODE, BlueprintKind, Data
from flujo_client.blueprint.shapes import ANY, FLAG, NULL, TEXT, AnyOf, Key, ListOf, MapOf, OneOf, Table
from flujo_client.blueprint.value_types import Named
from flujo_client.pipeline.nested import FAILURES, INPUTS, ImportStep


def _build(build: Building, data: Data) -> dict[str, Any]:
    config, own = data.get("config", {}), dict[str, Any]()
    if isinstance(config.get("outputs"), list):
        own["outputs"] = [(each["child"], each["parent"]) for each in config["outputs"]]
    own |= build.options(ImportStep, _CONFIG.keys, config, own)
    return {"pipeline": build.imported(data["uses"].partition(".")[2]), **own}


def _write(writing: Writing, step: ImportStep) -> dict[str, Any]:
    if step.keeps_input:
        writing.cannot("keeps_input cannot be written in a blueprint")
    pairs: Any = step.outputs.items() if isinstance(step.outputs, Mapping) else step.outputs or ()
    outputs = [{"child": child, "parent": parent} for child, parent in pairs]
    config = {} if step.outputs is None else {"outputs": outputs}
    config |= writing.options(step, _CONFIG.keys, config)
    return {"uses": writing.imported(step.pipeline, step.name), **({"config": config} if config else {})}


_PATHS: Final = Table(
    {
        "child": Key(TEXT, "A path in its context.", required=True),
        "parent": Key(TEXT, "A path in this pipeline's context.", required=True),
    },
    "an output",
)
_CONFIG: Final = Table(
    {
        "inherit_context": Key(FLAG, "Begin with this pipeline's context instead of its own."),
        "input_to": Key(
            OneOf(INPUTS), "The field of its context that gets the step's input; `initial_prompt` by default."
        ),
        "input_scratchpad_key": Key(TEXT, "The key of the input in `import_artifacts`."),
        "outputs": Key(
            AnyOf((ListOf(_PATHS), MapOf(TEXT, "path"), NULL)),
            "The fields of its context that this pipeline's context receives: all by default, none for an empty list.",
        ),
        "inherit_conversation": Key(FLAG, "Begin with this pipeline's conversation."),
        "propagate_hitl": Key(FLAG, "Let its questions to people pause this run."),
        "on_failure": Key(OneOf(FAILURES), "What happens when it fails; `abort` by default."),
        "default": Key(ANY, "The output that `continue_with_default` uses."),
        "own_run": Key(FLAG, "Run it as a child run."),
        "execution_mode": EXECUTION_MODE,
    },
    "an import's config",
)
KIND: Final = BlueprintKind(
    step=ImportStep,
    keys={
        "uses": Key(Named(("imports",), PYTHON_AGENT), "`imports.<name>`.", required=True),
        "config": Key(_CONFIG, "How it is run."),
    },
    is_import=True,
    build=_build,
    write=_write,
)
