"""What a blueprint, or any reference, may name of Flujo itself: two names, and nothing that it is made of (M-014).

Its modules read settings and secrets, start programs, open connections and import what they are told to; and all of them were within
reach of a text, for the classes that contexts are made of stand there too.
"""

import pytest

import flujo_client
from flujo_client import HumanInteraction, Pipeline, PipelineContext, Step, safe_serialize, step
from flujo_client.blueprint.validate import validate_text
from flujo_client.errors import BlueprintError, PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.reference import OURS, load, load_pipeline, reference_with_options
from flujo_client.serial import Resolver, decode, encode

WORKINGS = [
    "flujo_client.config.manager:ConfigManager",
    "flujo_client.config.manager:_read",
    "flujo_client.config.toml_positions:read",
    "flujo_client.gateway.door:SCHEMA",
    "flujo_client.gateway.requests:cancel",
    "flujo_client.embedded:Embedded",
    "flujo_client.embedded.process:spawn",
    "flujo_client.embedded.fake_redis:main",
    "flujo_client.blueprint.load:bytes_of",
    "flujo_client.pipeline.reference:load",
    "flujo_client.embedded.local:migrate",
    "flujo_client.cli.main:cli",
    "flujo_client:FlujoClient.enqueue",
    "flujo_client:Pipeline.from_yaml_file",
    "flujo_client:PipelineContext.parse_file",
    "flujo_client:PipelineContext.model_construct",
    "flujo_client.contract.context:PipelineContext.parse_raw",
    "flujo_client:safe_serialize.sub",
    "flujo_client.nowhere:PipelineContexts",
]
PREFIXES = [("*",), ("flujo_client",), ("flujo_client.config.manager", "acme"), ("acme",), ()]
ECHO = "{name: a, uses: 'broken_parts:echo'"
PLACES = {
    "an agent": "steps: [{name: a, uses: 'REF'}]",
    "a tool": "agents: {w: {model: 'test', tools: ['REF']}}\nsteps: [{name: a, uses: agents.w}]",
    "a model": "agents: {w: {model: 'REF'}}\nsteps: [{name: a, uses: agents.w}]",
    "a validator": f"steps: [{ECHO}, validators: ['REF']}}]",
    "a plugin": f"steps: [{ECHO}, plugins: ['REF']}}]",
    "a processor": f"steps: [{ECHO}, output_processors: ['REF']}}]",
    "a condition": f"steps: [{{name: c, kind: conditional, condition: 'REF', branches: {{x: {ECHO}}}}}}}]",
    "a hook": f"hooks: ['REF']\nsteps: [{ECHO}}}]",
    "resources": f"resources: 'REF'\nsteps: [{ECHO}}}]",
    "a context model": f"context_model: 'REF'\nsteps: [{ECHO}}}]",
    "an import": "imports: {c: 'REF'}\nsteps: [{name: a, uses: imports.c}]",
}


@pytest.mark.parametrize("reference", WORKINGS)
@pytest.mark.parametrize("allowed", PREFIXES, ids=",".join)
def test_no_reference_leads_into_flujos_workings(reference, allowed):
    """Whatever is allowed: no one needs it, and what is refused in production is refused before."""
    with pytest.raises(PipelineError, match="leads into Flujo's internals") as refused:
        load(reference, allowed=allowed, what="agent")
    assert "PipelineContext and safe_serialize can be named" in refused.value.suggestion


@pytest.mark.parametrize("name", sorted({*flujo_client.__all__} - {*OURS}))
def test_what_pipelines_are_written_with_is_no_part_of_one(name):
    with pytest.raises(PipelineError, match="internals"):
        load(f"flujo_client:{name}", allowed=("*",), what="function")


@pytest.mark.parametrize(
    "name", ["Pipeline.from_yaml_file", "own.to_yaml", "Loaded.from_yaml_text", "load_pipeline", "Loaded.load"]
)
def test_nor_by_way_of_a_module_that_holds_some_of_it(name):
    """Every module with a pipeline in it holds some, and its prefix is allowed."""
    with pytest.raises(PipelineError, match="internals"):
        load(f"{__name__}:{name}", allowed=(__name__,), what="agent")


@pytest.mark.parametrize("name", ["safe_serialize", "PipelineContext", "own", "Loaded.mine", "said"])
def test_what_a_module_makes_with_it_is_its_own(name):
    assert load(f"{__name__}:{name}", allowed=(__name__,), what="agent") is not None


class Loaded(Pipeline):
    load = staticmethod(load_pipeline)

    def mine(self):
        return self.to_yaml()


own = Pipeline([Step("plain", agent=safe_serialize)])


@step
def said(text):
    return text


@pytest.mark.parametrize("place", PLACES)
def test_a_blueprint_names_none_of_it(place):
    """Every place where a reference may stand, told with its line and when the blueprint is read."""
    text = PLACES[place].replace("REF", "flujo_client.embedded.fake_redis:main")
    told = [each for each in validate_text(text, allowed=("*",)).errors if "internals" in each.message]
    assert told
    assert all(each.line for each in told)
    with pytest.raises(BlueprintError, match="internals"):
        Pipeline.from_yaml_text(text, allowed=("broken_parts",))


def test_a_runs_hooks_and_resources_name_none_of_it():
    pipeline = Pipeline([Step("a", agent=len)])
    for named in ({"hooks": ["flujo_client.embedded.local:migrate"]}, {"resources": "flujo_client.embedded:Embedded"}):
        with pytest.raises(PipelineError, match="internals"):
            check(Pipeline(pipeline.steps, **named), allowed=("*",))
    with pytest.raises(PipelineError, match="internals"):
        load_pipeline(reference_with_options("flujo_client.embedded.fake_redis:main"), allowed=("*",))


@pytest.mark.parametrize("module", ["flujo_client", "flujo_client.contract.context", "flujo_client.serial.lenient"])
def test_what_may_be_named_needs_no_prefix(module):
    """By its public name, and by that of its home, as blueprints are written from Python."""
    for name, thing in {"PipelineContext": PipelineContext, "safe_serialize": safe_serialize}.items():
        if hasattr(__import__(module, fromlist=["x"]), name):
            assert load(f"{module}:{name}", allowed=(), what="function") is thing


def test_what_python_says_with_it_can_be_written_and_read():
    written = Pipeline([Step("plain", agent=safe_serialize)], name="plain").to_yaml()
    read = Pipeline.from_yaml_text(written, allowed=())
    assert read.to_yaml() == written


def test_values_on_the_wire_are_of_its_classes_as_before():
    """Contexts and results are made of them, and need no prefix either."""
    said = HumanInteraction(step="ask", question="go?", answer=True)
    assert decode(encode({"said": [said]}), resolve=Resolver(())) == {"said": [said]}
