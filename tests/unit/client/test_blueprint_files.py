"""What a blueprint names by file becomes a part of it, so that whoever has its text needs no file (SYS-30)."""

from dataclasses import replace

import pytest

from flujo_client import Pipeline
from flujo_client.blueprint.load import MAX_IMPORTS
from flujo_client.blueprint.validate import validate
from flujo_client.errors import BlueprintError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import bare, blueprint_reference, reference_to, reference_with_options
from flujo_client.sizes import MAX_BLUEPRINT_BYTES

AGENT = "agents: {{w: {{model: test, system_prompt: {prompt}}}}}\nsteps: [{{name: a, uses: agents.w}}]"
IMPORT = "imports: {{c: {file}}}\nsteps: [{{name: a, uses: imports.c}}]"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)


def load(folder, name="main"):
    return Pipeline.from_yaml_file(folder / f"{name}.yaml", allowed=("*",))


def refusal(folder):
    with pytest.raises(BlueprintError) as refused:
        load(folder)
    return refused.value


def prompt(pipeline):
    return pipeline.steps[0].agent.system_prompt


def test_a_file_gives_the_pipeline_its_name(folder):
    put(folder, main=AGENT.format(prompt="hi"), named="name: other\n" + AGENT.format(prompt="hi"))
    assert (load(folder).name, load(folder, "named").name) == ("main", "other")


def test_a_prompts_file_is_read_and_filled_in(folder):
    (folder / "prompt.md").write_text("\ufeffBe {{ tone | upper }}.\n{{#each rules}}- {{ this }}\n{{/each}}")
    put(folder, main=AGENT.format(prompt="{from_file: prompt.md, variables: {tone: kind, rules: [a, b]}}"))
    pipeline = load(folder)
    assert prompt(pipeline) == "Be KIND.\n- a\n- b\n"
    assert "prompt.md" not in pipeline.blueprint


def test_a_prompt_without_variables_is_no_template(folder):
    (folder / "prompt.md").write_text("Write {{ name }} as it is.")
    put(folder, main=AGENT.format(prompt="{from_file: prompt.md}"))
    assert prompt(load(folder)) == "Write {{ name }} as it is."


def test_a_missing_variable_is_refused(folder):
    put(folder, main=AGENT.format(prompt="{text: 'Be {{ tone }}', variables: {ton: kind}}"))
    assert "tone" in str(refusal(folder))


@pytest.mark.parametrize(
    "agent",
    [
        "agent: {model: test, system_prompt: {text: '{{ n }}', variables: {n: hi}}}",
        "fallback: {name: f, uses: 'builtins:len'}, agent: {model: test, system_prompt: {from_file: prompt.md}}",
    ],
)
def test_an_agent_on_its_step_has_a_prompt_too(folder, agent):
    (folder / "prompt.md").write_text("hi")
    put(folder, main=f"steps: [{{name: a, {agent}}}]")
    step = load(folder).steps[0]
    assert getattr(step, "primary", step).agent.system_prompt == "hi"


@pytest.mark.parametrize(
    "inner", ["agents: {{w: {}}}, steps: [{{name: a, uses: agents.w}}]", "steps: [{{name: a, agent: {}}}]"]
)
def test_a_blueprint_written_out_under_imports_has_its_prompts(folder, inner):
    (folder / "prompt.md").write_text("hi")
    document = inner.format("{model: test, system_prompt: {from_file: prompt.md}}")
    put(folder, main=f"imports: {{c: {{{document}}}}}\nsteps: [{{name: a, uses: imports.c}}]")
    assert prompt(load(folder).steps[0].pipeline) == "hi"


def test_a_blueprint_written_out_under_imports_may_import_files(folder):
    put(folder, child=AGENT.format(prompt="hi"))
    inner = "imports: {d: child.yaml}, steps: [{name: b, uses: imports.d}]"
    put(folder, main=f"imports: {{c: {{{inner}}}}}\nsteps: [{{name: a, uses: imports.c}}]")
    assert prompt(load(folder).steps[0].pipeline.steps[0].pipeline) == "hi"


def test_what_only_has_a_prompts_name_stays_as_it_is(folder):
    """A field of a schema, an agent, and a branch."""
    schema = "{type: object, properties: {system_prompt: {type: string}}}"
    put(
        folder,
        main=f"agents: {{system_prompt: {{model: test, output_schema: {schema}}}}}\n"
        "steps: [{name: a, kind: parallel, branches: {system_prompt: {name: b, uses: agents.system_prompt}}}]",
    )
    agent = load(folder).steps[0].branches["system_prompt"].agent
    assert agent.output_schema["properties"] == {"system_prompt": {"type": "string"}}


def test_an_import_becomes_a_part_of_it(folder):
    (folder / "parts").mkdir()
    (folder / "parts" / "prompt.md").write_text("inner")
    put(folder / "parts", child=AGENT.format(prompt="{from_file: prompt.md}"))
    put(folder, main=IMPORT.format(file="parts/child.yaml"))
    pipeline = load(folder)
    for file in folder.rglob("*.*"):
        file.unlink()
    again = Pipeline.from_yaml_text(pipeline.blueprint)
    assert prompt(again.steps[0].pipeline) == "inner"
    assert again.steps[0].pipeline.name == "child"
    assert compile_plan(again).fingerprint == compile_plan(pipeline).fingerprint


def test_what_is_wrong_in_an_import_is_told_with_its_own_file(folder):
    put(folder, main=IMPORT.format(file="child.yaml"), child="nam: x\nsteps: [{name: a, uses: agents.w}]")
    findings = refusal(folder).findings
    assert {each.file.rpartition("/")[2] for each in findings} == {"child.yaml"}
    assert [each.rule for each in findings] == ["Y-KEY", "V-A2"]


def test_circles_of_imports_are_refused(folder):
    put(folder, main=IMPORT.format(file="a.yaml"), a=IMPORT.format(file="b.yaml"), b=IMPORT.format(file="a.yaml"))
    assert "'a.yaml' imports itself" in str(refusal(folder))


def test_a_blueprint_that_imports_itself_is_refused(folder):
    put(folder, main=IMPORT.format(file="main.yaml"))
    assert "'main.yaml' imports itself" in str(refusal(folder))


def test_rows_of_imports_have_an_end(folder):
    for n in range(MAX_IMPORTS + 2):
        put(folder, **{f"f{n}": IMPORT.format(file=f"f{n + 1}.yaml")})
    put(folder, main=IMPORT.format(file="f0.yaml"))
    assert "is imported through more than" in str(refusal(folder))


@pytest.mark.large
def test_imports_that_double_have_an_end(folder):
    """Each imports the next one twice: a million leaves."""
    twice = (
        "imports: {{a: {file}, b: {file}}}\nsteps: [{{name: a, uses: imports.a}}, {{name: b, uses: imports.b}}]\n#"
        + "x" * 2000
    )
    for n in range(18):
        put(folder, **{f"f{n}": twice.format(file=f"f{n + 1}.yaml")})
    put(folder, f18=AGENT.format(prompt="x"), main=twice.format(file="f0.yaml"))
    assert f"more than {MAX_BLUEPRINT_BYTES:,} bytes" in str(refusal(folder))


@pytest.mark.parametrize("named", ["/etc/passwd", "../../../../../../../../etc/passwd", "~/x", "none.md", "."])
def test_only_files_of_its_own_are_read(folder, named):
    inner = folder / "inner"
    inner.mkdir()
    put(inner, main=AGENT.format(prompt=f"{{from_file: '{named}'}}"))
    with pytest.raises(BlueprintError, match=r"is outside|cannot be read"):
        load(inner)


def test_a_link_that_leads_outside_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("secret")
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    (inner / "link.md").symlink_to(tmp_path / "secret")
    put(inner, main=AGENT.format(prompt="{from_file: link.md}"))
    with pytest.raises(BlueprintError, match="is outside"):
        load(inner)


@pytest.mark.parametrize(
    "named",
    [
        ".env",
        "./.env",
        "parts/../.env",
        ".git/config",
        "parts/.notes/a.md",
        "link.md",
        "linked/config",
        "..env",
        "...notes/a.md",
    ],
)
def test_hidden_files_are_not_read(folder, named):
    """What has a name with a dot before it is kept from being looked at: passwords, and tools' own data."""
    for hidden in (".env", ".git/config", "parts/.notes/a.md", "..env", "...notes/a.md"):
        (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
        (folder / hidden).write_text("hunter2")
    (folder / "link.md").symlink_to(folder / ".env")
    (folder / "linked").symlink_to(folder / ".git")
    put(folder, main=AGENT.format(prompt=f"{{from_file: '{named}'}}"))
    (finding,) = refusal(folder).findings
    assert (finding.rule, finding.key) == ("Y-FILE", "agents.w.system_prompt.from_file")
    assert finding.message.startswith(f"'{named}' is hidden")


def test_hidden_blueprints_are_not_imported(folder):
    put(folder, main=IMPORT.format(file=".child.yaml"))
    (folder / ".child.yaml").write_text(AGENT.format(prompt="hi"))
    (finding,) = refusal(folder).findings
    assert "'.child.yaml' is hidden" in finding.message


def test_a_blueprint_in_a_hidden_folder_has_its_own_files(folder):
    """Whoever runs it has named that folder; what lies next to it stays hidden."""
    own = folder / ".flows"
    own.mkdir()
    (own / "prompt.md").write_text("hi")
    (folder / ".env").write_text("hunter2")
    put(own, main=AGENT.format(prompt="{from_file: prompt.md}"), other=AGENT.format(prompt="{from_file: ../.env}"))
    assert prompt(load(own)) == "hi"
    with pytest.raises(BlueprintError, match=r"'\.\./\.env' is hidden"):
        load(own, "other")


def test_files_of_a_mounted_volume_are_read(folder):
    """Kubernetes shows the files of a ConfigMap as links into a folder `..data`, itself a link."""
    (folder / "..2024_05").mkdir()
    (folder / "..2024_05" / "prompt.md").write_text("hi")
    (folder / "..data").symlink_to("..2024_05")
    (folder / "prompt.md").symlink_to("..data/prompt.md")
    put(folder, main=AGENT.format(prompt="{from_file: prompt.md}"))
    assert prompt(load(folder)) == "hi"


def test_a_files_name_may_have_a_question_mark(folder):
    """Behind a pipeline's reference it begins what the run has instead of its own."""
    (folder / "why?.md").write_text("hi")
    put(folder, **{"what?": AGENT.format(prompt="{from_file: 'why?.md'}")}, main=IMPORT.format(file="'what?.yaml'"))
    assert prompt(load(folder, "what?")) == prompt(load(folder).steps[0].pipeline) == "hi"
    named = reference_with_options("what?.yaml", resources="acme:tariffs")
    assert (named, bare(named), bare("what?.yaml")) == ("what?.yaml?resources=acme:tariffs", "what?.yaml", "what?.yaml")


def test_a_missing_blueprint_is_named(folder):
    with pytest.raises(BlueprintError, match=r"none\.yaml' cannot be read: No such file"):
        Pipeline.from_yaml_file("none.yaml")


def test_comments_and_layout_change_no_reference(folder):
    text = AGENT.format(prompt="hi")
    one, two = (Pipeline.from_yaml_text(each, name="x") for each in (text, f"# note\n{text.replace(', ', ',    ')}"))
    assert reference_to(one) == reference_to(two) == blueprint_reference(one.blueprint)
    assert reference_to(one).startswith("blueprint:")


def test_an_edit_changes_the_reference_and_the_fingerprint(folder):
    one, two = (Pipeline.from_yaml_text(AGENT.format(prompt=each)) for each in ("hi", "ho"))
    assert reference_to(one) != reference_to(two)
    assert compile_plan(one).fingerprint != compile_plan(two).fingerprint


def test_what_is_composed_of_it_is_another_pipeline(folder):
    pipeline = Pipeline.from_yaml_text(AGENT.format(prompt="hi"))
    other = pipeline.steps[0]
    assert [each.blueprint for each in (pipeline >> other, other >> pipeline, pipeline >> pipeline)] == [None] * 3
    assert replace(pipeline).blueprint is not None


@pytest.mark.parametrize("named", ["part.yml", "PART.YML", "part.Yaml"])
def test_the_extension_of_a_blueprint_is_read_in_capitals_too(folder, named):
    (folder / named).write_text("steps: [{name: a, uses: 'builtins:len'}]")
    put(folder, main=IMPORT.format(file=named))
    assert [step.name for step in Pipeline.from_yaml(named, allowed=("*",)).steps] == ["a"]
    assert validate(named, allowed=("*",)).is_valid
    assert load(folder).steps[0].name == "a"
