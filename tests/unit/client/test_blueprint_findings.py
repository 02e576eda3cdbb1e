"""What is wrong in a blueprint: all of it at once, each with its place, its key, what is allowed and what was likely meant."""

import pytest

from flujo_client import Pipeline
from flujo_client.errors import BlueprintError


def findings(text, **options):
    with pytest.raises(BlueprintError) as refused:
        Pipeline.from_yaml_text(text, **{"allowed": ("*",), **options})
    return refused.value.findings


def found(text, **options):
    (finding,) = findings(text, **options)
    return finding


def step(rest):
    return f"steps:\n  - {{name: a, uses: 'builtins:len', {rest}}}"


def test_all_findings_are_told_with_their_places():
    text = """
nam: x
agents: {writer: {model: test, timeout: -1, tool: []}}
steps:
  - name: a
    uses: agents.write
    config: {max_retry: 2, timeout_s: abc}
  - kind: lop
"""
    assert [(each.rule, each.line, each.key) for each in findings(text)] == [
        ("Y-KEY", 2, "nam"),
        ("Y-TYPE", 3, "agents.writer.timeout"),
        ("Y-KEY", 3, "agents.writer.tool"),
        ("V-A2", 6, "steps[0].uses"),
        ("Y-KEY", 7, "steps[0].config.max_retry"),
        ("Y-VALUE", 7, "steps[0].config.timeout_s"),
        ("Y-VALUE", 8, "steps[1].kind"),
    ]


@pytest.mark.parametrize(
    ("text", "rule", "key", "nearest"),
    [
        (step("updates_contxt: true"), "Y-KEY", "steps[0].updates_contxt", "updates_context"),
        (step("config: {max_retrys: 1}"), "Y-KEY", "steps[0].config.max_retrys", "max_retries"),
        (
            "agents: {writer: {model: test}}\nsteps: [{name: a, uses: agents.writter}]",
            "V-A2",
            "steps[0].uses",
            "agents.writer",
        ),
        ("steps: [{kind: paralel, name: a}]", "Y-VALUE", "steps[0].kind", "parallel"),
        (
            "steps: [{kind: parallel, name: a, branches: {}, on_branch_failure: ignor}]",
            "Y-VALUE",
            "steps[0].on_branch_failure",
            "ignore",
        ),
        ("steps: [{kind: parallel, name: a, branches: {}, reduce: unon}]", "Y-VALUE", "steps[0].reduce", "union"),
        ("steps: [{kind: hitl, name: a, expires: 3}]", "Y-KEY", "steps[0].expires", "expires_s"),
    ],
)
def test_what_was_likely_meant_is_told(text, rule, key, nearest):
    finding = found(text)
    assert (finding.rule, finding.key, finding.nearest) == (rule, key, nearest)
    assert f"did you mean '{nearest}'?" in str(finding)


AGENTIC = "steps: [{kind: agentic_loop, name: a, planner: 'builtins:len', registry: %s}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a list is not accepted here (it takes a mapping of version, name"),
        ("name: x", "a blueprint needs 'steps'"),
        ("steps: []", "steps: it has no steps"),
        ("steps: [a]", "steps[0]: 'a' is not accepted here (it takes a step"),
        ("version: '2'\nsteps: [{name: a, uses: 'builtins:len'}]", "version: '2' is not known (it takes 0.1)"),
        ("steps: [{uses: 'builtins:len'}]", "a step needs one of name, step"),
        ("steps: [{name: a}]", "a step needs one of uses, agent"),
        ("steps: [{name: a, agent: 'builtins:len', uses: 'builtins:len'}]", "steps[0].agent: cannot be combined with 'uses'; keep one"),
        ("steps: [{name: a, uses: 'builtins:nothing'}]", "module 'builtins' has no 'nothing'"),
        ("steps: [{name: a, uses: 'nowhere.mod:x'}]", "no module named 'nowhere'"),
        ("steps: [{name: a, uses: 'builtins:int.x'}]", "has no 'int.x'"),
        ("steps: [{name: a, uses: 'agents.none'}]", "`agents` of this document has no 'none'"),
        ("steps: [{name: a, uses: 'imports.none'}]", "`imports` of this document has no 'none'"),
        ("steps: [{name: a, uses: 'sys:maxsize'}]", "'sys:maxsize' is a int; expected a callable or an object with a run method"),
        (step("branches: {}"), "it belongs on a parallel or a conditional"),
        (step("exit_expression: x"), "it belongs on a loop, under `loop`"),
        (step("validate_fields: true"), "steps[0].validate_fields: validate_fields needs updates_context or sink_to"),
        (step("sink_to: 'a..b'"), "is not a dotted path"),
        (step("input: '{{ nothing }}'"), "steps[0].input: "),
        (step("input: '{{ steps.a'"), "steps[0].input: "),
        (step("usage_limits: {total_cost_usd_limit: -1}"), "steps[0].usage_limits.total_cost_usd_limit: '-1' is not accepted here"),
        (step("output_schema: {type: nonsense}"), "steps[0].output_schema: it is not a JSON Schema"),
        (step("config: {timeout: 1, timeout_s: 2}"), "timeout: is an alias of 'timeout_s', which is used here too"),
        (step("config: {backoff: {base_s: x}}"), "steps[0].config.backoff.base_s: 'x' is not accepted here"),
        (step("plugins: [3]"), "plugins[0]: '3' is not accepted here"),
        (step("plugins: [{priority: 1}]"), "a plugin needs 'plugin'"),
        (step("processing: {aop: ful}"), "processing.aop: 'ful' is not allowed, only 'off', 'minimal', 'full'"),
        (step("processing: {reasoning_precheck: {validator_agent: agents.none}}"), "validator_agent: `agents` of this document has no 'none'"),
        ("static_invariants: x > 1\nsteps: [{name: a, uses: 'builtins:len'}]", "static_invariants: 'x > 1' is not accepted here"),
        ("static_invariants: ['context.x >']\nsteps: [{name: a, uses: 'builtins:len'}]", "static_invariants[0]: "),
        ("static_invariants: ['no.module:here']\nsteps: [{name: a, uses: 'builtins:len'}]", "static_invariants[0]: "),
        (step("static_invariants: ['amount > 1']"), "steps[0].static_invariants[0]: "),
        ("steps: [{kind: agentic_loop, name: a}]", "an agentic_loop needs 'planner'"),
        (AGENTIC % "{}", "registry: it does not contain agents"),
        (AGENTIC % "[a]", "registry: a list is not accepted here"),
        (AGENTIC % "{b: 'builtins:len', finish: 'builtins:len'}", "registry.finish: 'finish' is reserved by the loop"),
        (AGENTIC % "{'b/c': 'builtins:len'}", "registry.b/c: agent 'b/c': a name must have 1 to"),
        (AGENTIC % "{b: 'sys:maxsize'}", "registry.b: 'sys:maxsize' is a int; expected a callable or an object with a run method"),
        (AGENTIC % "{b: agents.c}", "registry.b: `agents` of this document has no 'c'"),
        (AGENTIC % "{b: 'builtins:len'}, on_agent_failure: skip", "on_agent_failure: 'skip' is not known (it takes abort | tell)"),
        (AGENTIC % "{b: 'builtins:len'}, max_loops: 0", "max_loops: '0' is not accepted here"),
        (AGENTIC % "{b: 'builtins:len'}, output_template: '{{ nothing }}'", "output_template: "),
        (AGENTIC % "{b: 'builtins:len'}, config: {max_retries: 1}", "config.max_retries: a container's config has no such key"),
        ("context_model: null\n" + AGENTIC % "{b: 'builtins:len'}", "the log of its turns needs a context"),
        ("steps: [{kind: tree_search, name: a}]", "a tree_search needs 'proposer'"),
        ("steps: [{kind: [x], name: a}]", "is not a kind of step"),
        ("steps: [{kind: loop, name: a}]", "a loop needs 'loop'"),
        ("steps: [{kind: loop, name: a, loop: {body: [{name: x, uses: 'builtins:len'}]}}]", "one of exit_condition, exit_expression, stop_when"),
        ("steps: [{kind: loop, name: a, body: []}]", "steps[0].body: a loop has no such key; it belongs on a loop, under `loop`"),
        ("steps: [{kind: map, name: a, map: {iterable_input: '{{ output }}', body: {name: x, uses: 'builtins:len'}}}]", "iterable_input"),
        ("steps: [{kind: parallel, name: a, branches: {x: []}}]", "branches.x: it has no steps"),
        ("steps: [{kind: parallel, name: a, config: {max_retries: 1}, branches: {}}]", "config.max_retries: a container's config has no such key; it belongs on the steps inside"),
        ("steps: [{kind: parallel, name: a, branches: {}, merge_strategy: 'sys:maxsize'}]", "is a int, not a callable"),
        ("steps: [{kind: StateMachine, name: a, states: {x: {name: y, uses: 'builtins:len'}}, start_state: z, end_states: [x]}]", "start_state: 'z' is not a state"),
        ("imports: {a: ../a.yaml}\nsteps: [{name: a, uses: imports.a}]", "has no folder"),
        ("agents: {a: {model: m, system_prompt: {from_file: x.md}}}\nsteps: [{name: a, uses: agents.a}]", "has no folder"),
        ("agents: {a: {model: m, system_prompt: {variables: {}}}}\nsteps: [{name: a, uses: agents.a}]", "a prompt needs one of from_file, text"),
        ("agents: {a: {model: m, system_prompt: {text: '{{ b }}', variables: {c: 1}}}}\nsteps: [{name: a, uses: agents.a}]", "agents.a.system_prompt"),
        ("steps: [{kind: cache, wrapped_step: {name: a, uses: 'builtins:len', input: '{{ context.b }}'}}]", "input reads context in a cached step"),
        ("steps: [{kind: cache, wrapped_step: {kind: loop, name: a, loop: {body: [], exit_expression: output, init: {}}}}]", "only one step is allowed here"),
        ("context_model: 'nowhere:X'\nsteps: [{name: a, uses: 'builtins:len'}]", "no module named 'nowhere'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text, said):
    assert said in "\n".join(map(str, findings(text)))


def test_what_the_pipelines_check_finds_is_told_with_its_line():
    text = """
steps:
  - kind: parallel
    name: both
    branches:
      a:
        - {name: x, uses: "builtins:len"}
        - {name: 'y:z', uses: "builtins:len"}
      b:
        - {name: x, uses: "builtins:len", sink_to: "1"}
"""
    assert [(each.rule, each.line, each.key) for each in findings(text)] == [
        ("Y-PIPELINE", 8, "steps[0].branches.a[1]"),
        ("V-C1", 10, "steps[0].branches.b[0].sink_to"),
    ]


def test_nothing_outside_the_allowed_imports_is_imported(tmp_path, monkeypatch):
    """M-014: refused before it is imported."""
    (tmp_path / "forbidden_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    finding = found("steps: [{name: a, uses: 'forbidden_module:x'}]", allowed=("shop",))
    assert "outside the allowed imports (shop)" in finding.message
    assert "allowed_imports" in str(finding.allowed)


def test_the_projects_allowed_imports_count_by_default(tmp_path, monkeypatch):
    """§2.6: `blueprint_allowed_imports`."""
    (tmp_path / "flujo.toml").write_text('blueprint_allowed_imports = ["shop"]')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BlueprintError, match="outside the allowed imports"):
        Pipeline.from_yaml_text("steps: [{name: a, uses: 'builtins:len'}]")


def test_a_long_list_of_findings_is_told_in_part_and_kept_whole():
    text = "steps:\n" + "\n".join(f"  - {{name: s{n}}}" for n in range(300))
    with pytest.raises(BlueprintError, match="and 200 more") as refused:
        Pipeline.from_yaml_text(text)
    assert len(refused.value.findings) == 300
