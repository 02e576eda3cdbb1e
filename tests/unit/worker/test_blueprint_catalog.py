"""How a worker loads the pipeline of a blueprint: only from the text that was stored with its plan."""

from dataclasses import replace

import pytest

from flujo_client import Pipeline
from flujo_client.config.manager import Settings
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import blueprint_reference, reference_to, reference_with_options
from flujo_client.plan.plan import Plan
from flujo_worker.changed_code import code_registry as module
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry
from flujo_worker.testing import LocalEngine

TEXT = "steps: [{name: a, uses: 'builtins:len', input: '{{ previous_step }}'}]"
ALLOWED = ("builtins",)


def stored(text=TEXT):
    """A blueprint's plan as Postgres gives it back, and its reference."""
    pipeline = Pipeline.from_yaml_text(text, allowed=ALLOWED)
    return Plan.from_tree(compile_plan(pipeline).to_tree()), reference_to(pipeline)


def catalog_of(*plans, allowed=ALLOWED):
    known = {plan.fingerprint: plan for plan in plans}
    return CodeRegistry(allowed, known.get)


def test_a_pipeline_is_built_of_the_stored_text():
    plan, reference = stored()
    entry = catalog_of(plan).entry(reference, plan.fingerprint)
    assert (entry.plan.fingerprint, entry.steps["a"].input) == (plan.fingerprint, "{{ previous_step }}")


def test_resources_of_a_reference_are_heeded():
    pipeline = replace(Pipeline.from_yaml_text(TEXT, allowed=ALLOWED), resources="builtins:dict")
    plan, reference = compile_plan(pipeline), reference_to(pipeline)
    assert reference.endswith("?resources=builtins:dict")
    assert catalog_of(plan).entry(reference, plan.fingerprint).pipeline.resources == "builtins:dict"


@pytest.mark.parametrize(
    ("added", "told"),
    [([], ["print"]), (["builtins:repr"], ["print", "repr"])],
    ids=["its own", "more"],
)
def test_hooks_of_a_reference_are_heeded(added, told):
    """§2.9: of the run, and of a separate run in it, which has the reference of its parent."""
    inner = "{hooks: ['builtins:len'], steps: [{name: b, uses: 'builtins:len'}]}"
    text = (
        f"hooks: ['builtins:print']\nimports: {{c: {inner}}}\n"
        "steps: [{name: a, uses: imports.c, config: {own_run: true}}]"
    )
    pipeline = reference_with_options(Pipeline.from_yaml_text(text, allowed=ALLOWED), hooks=added)
    plan, reference = Plan.from_tree(compile_plan(pipeline).to_tree()), reference_to(pipeline)
    entry = catalog_of(plan).entry(reference, plan.fingerprint)
    assert list(entry.hooks_of_run("")) == [f"builtins:{each}" for each in told]
    assert list(entry.hooks_of_run("a/body")) == ["builtins:len"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: None,
        lambda plan: replace(plan, blueprint=None),
        lambda plan: replace(plan, blueprint=plan.blueprint + "# other"),
    ],
)
def test_no_other_text_is_built(spoil):
    """M-014: what the reference names is what is built, or nothing."""
    plan, reference = stored()
    catalog = CodeRegistry(ALLOWED, lambda _: spoil(plan))
    with pytest.raises(CodeMismatch, match="no blueprint is stored"):
        catalog.entry(reference, plan.fingerprint)


def test_a_workers_own_allowed_imports_count():
    """M-014: a client's say is not enough."""
    plan, reference = stored()
    with pytest.raises(CodeMismatch, match="outside the allowed imports"):
        catalog_of(plan, allowed=("shop",)).entry(reference, plan.fingerprint)


def test_code_that_changed_parks_the_run():
    plan, reference = stored()
    with pytest.raises(CodeMismatch, match="the run was started with"):
        CodeRegistry(ALLOWED, lambda _: plan).entry(reference, "0" * 64)


def test_a_file_is_never_read_by_a_worker(tmp_path):
    (tmp_path / "x.md").write_text("secret")
    text = f"agents: {{w: {{model: m, system_prompt: {{from_file: {tmp_path}/x.md}}}}}}\nsteps: [{{name: a, uses: agents.w}}]"
    plan = replace(stored()[0], blueprint=text)
    with pytest.raises(CodeMismatch, match="has no folder"):
        CodeRegistry(ALLOWED, lambda _: plan).entry(blueprint_reference(text), plan.fingerprint)


def test_a_process_keeps_a_bounded_number(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    plans = [stored(TEXT.replace("name: a", f"name: s{n}")) for n in range(4)]
    catalog = catalog_of(*(plan for plan, _ in plans))
    for plan, reference in [*plans, *plans]:
        assert catalog.entry(reference, plan.fingerprint).plan == plan
    assert len(catalog._entries) == 2


def test_a_declared_agent_is_made_once_and_by_what_it_is():
    catalog = catalog_of()
    one, same, other = (DeclaredAgent("w", "test", prompt) for prompt in ("a", "a", "b"))
    assert catalog.agent(one) is catalog.agent(same) is not catalog.agent(other)


def test_a_run_whose_imports_the_worker_forbids_is_parked():
    pipeline = Pipeline.from_yaml_text(TEXT, allowed=ALLOWED)
    with LocalEngine(Settings(allowed_imports=ALLOWED)) as engine:
        run_id = engine.enqueue(pipeline, "abc")
        engine.attempts.catalog._allowed = ("shop",)
        engine.drain()
        assert engine.stores.reads.read_run(run_id).status == "parked"


def test_the_engine_of_tests_heeds_what_a_blueprint_is_given_besides():
    pipeline = reference_with_options(Pipeline.from_yaml_text(TEXT, allowed=ALLOWED), hooks=["builtins:repr"])
    with LocalEngine(Settings(allowed_imports=ALLOWED)) as engine:
        run_id = engine.enqueue(pipeline, "abc")
        engine.drain()
        assert engine.stores.reads.read_run(run_id).status == "succeeded"


def test_a_module_without_a_dot_makes_a_model(tmp_path, monkeypatch):
    """§2.6: the reference that the how-to shows; it was taken for the provider `models`."""
    (tmp_path / "models_of_a_blueprint.py").write_text("def gateway():\n    return 'local:mock'\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = "agents: {w: {model: 'models_of_a_blueprint:gateway'}}\nsteps: [{name: a, uses: agents.w}]"
    pipeline = Pipeline.from_yaml_text(text, allowed=("models_of_a_blueprint",))
    with LocalEngine() as engine:
        assert engine.run(pipeline, "Ada").output == "Ada"
