"""`flujo lens show --prompt`: what models were sent, from a run's trace, and what is said about it (§2.9)."""

from flujo_client.cli.lens_show import prompts_shape, prompts_text
from flujo_client.contract.trace import TraceEvent, TraceNode

SECRETS = "secrets, and the fields of `[log] redact`, are hidden"


def trace_of(*events):
    attempt = TraceNode(name="attempt 2", kind="attempt", status="succeeded", events=[TraceEvent(**e) for e in events])
    step = TraceNode(name="ask", kind="step", status="succeeded", children=[attempt])
    branch = TraceNode(name="left", kind="branch", status="succeeded", children=[step])
    return TraceNode(name="p", kind="run", status="succeeded", children=[branch])


def event(name, **data):
    return {"name": name, "data": data}


def test_each_text_stands_with_its_attempt_in_the_order_of_the_story():
    shown = prompts_shape(
        trace_of(
            event("agent.system.vars", template="a.j2", variables={"mood": "good"}),
            event("agent.system", model_id="m", system_prompt_preview="Be brief."),
            event("agent.prompt", prompt_preview="go"),
            event("agent.schema", mode="native", schema_preview="{}"),
            event("flujo.retry", reason="x"),
            event("agent.response", response_preview="fine"),
        )
    )
    assert {each["path"] for each in shown} == {"left/ask:2"}
    assert [(each["what"], each["text"]) for each in shown] == [
        ("variables of the system prompt", {"mood": "good"}),
        ("system prompt", "Be brief."),
        ("prompt", "go"),
        ("output schema", "{}"),
        ("response", "fine"),
    ]
    assert prompts_text(shown) == SECRETS


def test_an_agent_without_a_system_prompt_has_none():
    assert prompts_shape(trace_of(event("agent.system", model_id="m", system_prompt_preview=None))) == []


def test_what_was_cut_is_said():
    shown = prompts_shape(
        trace_of(event("agent.prompt", prompt_preview="x" * 200), event("agent.response", response_preview="y"))
    )
    assert [each["is_cut"] for each in shown] == [True, False]
    assert prompts_text(shown).startswith(f"{SECRETS}; texts were cut at 200 characters")


def test_that_nothing_was_told_is_said():
    assert prompts_text([]).startswith("no prompts: ")
