"""How a pipeline of a blueprint is enqueued: by file, by object, with resources; and what cannot travel so."""

from dataclasses import replace

import pytest

from flujo_client import Flujo, Pipeline, Settings
from flujo_client.api.operations import find_pipeline
from flujo_client.errors import BlueprintError, PipelineError
from flujo_client.pipeline.reference import blueprint_reference

TEXT = "steps: [{name: a, uses: 'builtins:len'}]"
SETTINGS = Settings(allowed_imports=("builtins",))


def found(pipeline):
    with pytest.raises(StopIteration) as done:
        next(find_pipeline(SETTINGS, pipeline, has_context=False))
    return done.value.value


@pytest.fixture
def file(tmp_path):
    (tmp_path / "letters.yaml").write_text(TEXT)
    return tmp_path / "letters.yaml"


def test_a_file_is_found_by_its_name(file):
    it = found(str(file))
    assert (it.plan.name, it.reference) == ("letters", blueprint_reference(it.plan.blueprint))


def test_an_object_is_found_by_its_text(file):
    assert found(Pipeline.from_yaml_file(file)).reference == found(str(file)).reference


@pytest.mark.parametrize("given", [str, Pipeline.from_yaml_file])
def test_resources_of_the_facade_go_with_it(file, given):
    """§2.1: `Flujo(resources=)`."""
    flujo = Flujo(given(file), resources="builtins:dict", settings=SETTINGS)
    it = found(flujo._pipeline)
    assert it.reference.endswith("?resources=builtins:dict")
    assert it.plan.resources == {"ref": "builtins:dict"}


@pytest.mark.parametrize("given", [str, Pipeline.from_yaml_file])
@pytest.mark.parametrize("own", ["", "hooks: ['builtins:print']\n"], ids=["none", "its own"])
def test_hooks_of_the_facade_go_with_it_after_its_own(file, given, own):
    """§2.9: `Flujo(hooks=)`; the reference names all, for the worker has nothing else."""
    file.write_text(own + TEXT)
    flujo = Flujo(given(file), hooks=["builtins:repr"], resources="builtins:dict", settings=SETTINGS)
    it = found(flujo._pipeline)
    named = [*(["builtins:print"] if own else []), "builtins:repr"]
    assert it.reference.endswith(f"?resources=builtins:dict&hooks={','.join(named)}")
    assert it.plan.hooks == {"": [{"ref": each} for each in named]}


@pytest.mark.parametrize("changed", [{"hooks": ()}, {"hooks": [print]}, {"resources": {}}], ids=str)
def test_what_no_reference_can_say_is_not_sent(file, changed):
    file.write_text("hooks: ['builtins:print']\n" + TEXT)
    with pytest.raises(PipelineError, match="changed after it was read"):
        found(replace(Pipeline.from_yaml_file(file), **changed))


def test_a_pipeline_that_was_changed_is_not_sent_as_its_text(file):
    changed = replace(Pipeline.from_yaml_file(file), version="2")
    with pytest.raises(PipelineError, match="changed after it was read"):
        found(changed)


def test_references_are_checked_by_the_settings_of_the_client(file):
    with pytest.raises(BlueprintError, match="outside the allowed imports"):
        next(find_pipeline(Settings(allowed_imports=("shop",)), str(file), has_context=False))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BlueprintError, match="cannot be read: No such file"):
        found(str(tmp_path / "none.yml"))
