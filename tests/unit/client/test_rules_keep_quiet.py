"""What is not known is not judged: sound blueprints have no findings, and those that only look like faults neither (§2.6)."""

import subprocess
import sys

import pytest

from flujo_client.blueprint.load import load_stored
from flujo_client.blueprint.validate import validate_text

WRITER = "agents: {w: {model: test, output_schema: {type: object, properties: {title: {type: string}}}}}\n"
TEXT = "agents: {w: {model: test}}\n"
SOUND = {
    "the output of a function may have any field": """
steps:
  - {name: a, uses: "broken_parts:echo"}
  - {name: b, uses: "broken_parts:echo", input: "{{ previous_step.title }} {{ steps.a.output.author }}"}
""",
    "a plugin may put another output in its place": TEXT
    + """
steps:
  - {name: a, uses: agents.w, plugins: ["broken_parts:JUDGE"]}
  - {name: b, uses: agents.w, input: "{{ previous_step.title }}"}
""",
    "the pipeline goes on with a background step's input": TEXT
    + """
steps:
  - {name: a, uses: agents.w, config: {execution_mode: background}}
  - {name: b, uses: agents.w, input: "{{ previous_step.title }}"}
  - {name: c, uses: agents.w, config: {execution_mode: background}}
  - {name: d, uses: agents.w, input: "Say hello"}
""",
    "in a conversation an answer is told as a turn": TEXT
    + """
steps:
  - kind: loop
    name: chat
    loop:
      conversation: true
      max_loops: 2
      exit_expression: "'bye' in previous_step"
      history_template: "{{#each history}}{{ this.role }}{{/each}}"
      body:
        - {name: a, uses: agents.w}
        - {name: b, uses: agents.w, input: "Go on."}
""",
    "a map's finalize reads the items' outputs": """
steps:
  - kind: map
    name: each
    map:
      init: {set: [{target: scratchpad.items, value: "{{ previous_step }}"}]}
      iterable_input: scratchpad.items
      body: {name: x, uses: "broken_parts:echo"}
      finalize: "{{ this | join(', ') }} {{ steps.x.output }}"
""",
    "a loop's next iteration reads what the one before made": """
steps:
  - kind: loop
    name: again
    loop:
      body:
        - {name: a, uses: "broken_parts:echo", input: "{{ steps.b.output or previous_step }}"}
        - {name: b, uses: "broken_parts:echo"}
      exit_expression: steps.b.output == 'done'
      output: "{{ steps.b.output }}"
""",
    "a function may write any field of the context": """
steps:
  - kind: loop
    name: again
    loop: {body: {name: a, uses: "broken_parts:echo"}, exit_expression: context.is_done}
""",
    "an item in a map is this": """
steps:
  - kind: map
    name: each
    map: {iterable_input: context.lines, body: {name: a, uses: "broken_parts:echo", input: "{{ this }}"}}
""",
    "a schema that is open may bring other fields, and a field of its own counts": WRITER
    + """
steps:
  - {name: a, uses: agents.w, updates_context: true}
  - {name: b, uses: agents.w, input: "{{ previous_step.title }} {{ steps.a.output.title }} {{ context.title }}"}
""",
    "branches that write different fields": """
steps:
  - kind: parallel
    name: p
    branches:
      x: {name: a, uses: "broken_parts:echo", sink_to: first}
      y: {name: b, uses: "broken_parts:echo", sink_to: second}
  - {name: c, uses: "broken_parts:echo", input: "{{ steps.a.output }} {{ steps.p.output.x }}"}
""",
    "a merge that says which counts": """
steps:
  - kind: parallel
    name: p
    merge_strategy: keep_first
    branches:
      x: {name: a, uses: "broken_parts:echo", sink_to: letter}
      y: {name: b, uses: "broken_parts:echo", sink_to: letter}
""",
    "a branch reads what it has written itself": """
steps:
  - kind: parallel
    name: p
    context_include_keys: [letter]
    branches:
      x:
        - {name: a, uses: "broken_parts:echo", sink_to: note}
        - {kind: hitl, name: b, message: "Is {{ context.note }} right for {{ context.letter }}?"}
""",
    "a condition of true and false": """
steps:
  - kind: conditional
    name: sort
    condition_expression: previous_step > 3
    branches: {true: {name: a, uses: "broken_parts:echo"}, "false": {name: b, uses: "broken_parts:echo"}}
""",
    "an import's steps may be those that are read": """
imports: {part: {steps: [{name: inner, uses: "broken_parts:echo", input: "{{ steps.outer.output }}"}]}}
steps:
  - {name: outer, uses: "broken_parts:echo"}
  - {name: a, uses: imports.part, config: {inherit_context: true}}
  - {name: b, uses: "broken_parts:echo", input: "{{ steps.inner.output }}"}
""",
    "a machine that ends": """
steps:
  - kind: StateMachine
    name: m
    start_state: draft
    end_states: [done]
    states: {draft: {name: a, uses: "broken_parts:echo"}, review: {name: b, uses: "broken_parts:echo"}}
    transitions: [{from: draft, to: review}, {from: review, to: done, when: steps.a.output}, {from: "*", to: draft}]
""",
    "a fallback of another agent": "agents: {w: {model: test}, v: {model: 'openai:gpt-5'}}\n"
    "steps: [{name: a, uses: agents.w, fallback: {name: b, uses: agents.v}}]",
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_what_is_sound_is_left_alone(text):
    assert [str(each) for each in validate_text(text, allowed=("*",)).findings] == []


def test_a_text_that_travels_is_not_judged_by_rules_again():
    """A worker of a newer release builds what an older client took."""
    text = "agents: {w: {model: gpt-5}}\nsteps: [{name: a, uses: agents.w}]"
    assert [each.rule for each in validate_text(text, allowed=()).errors] == ["V-A6"]
    assert load_stored(text, allowed=()).steps[0].name == "a"


WORKER = """
import sys
from flujo_client.blueprint.load import load_stored
load_stored("steps: [{name: a, uses: 'builtins:ord'}]", allowed=("builtins",))
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("flujo_client.blueprint.rules.")))
"""


@pytest.mark.processes
def test_a_worker_imports_no_rule():
    """It imports only the two modules that find the agents of a document."""
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["document_index", "model"]
