"""What people see, to the letter, at 80 columns and without colour; and what programs get (SYS-29, M-291)."""

import io
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import Recorder
from rich.console import Console, Group

from flujo_client.cli.format import age, cost, counted, duration, in_a_line, printable, written
from flujo_client.cli.json_output import details_shape, event_shape, run_shape, span_shapes, stats_shape, step_shape
from flujo_client.cli.output import show_json
from flujo_client.cli.render import trace_tree
from flujo_client.cli.run import progress_of
from flujo_client.cli.status import services_table
from flujo_client.cli.story import event_line, question_lines, summary
from flujo_client.cli.tables import (
    approvals_list,
    budget_line,
    error_section,
    run_card,
    runs_table,
    section,
    sentence_lines,
    spans_table,
    stats_card,
    steps_table,
)
from flujo_client.contract.approval import Approval, verdict
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import BudgetRecord, EventRecord, RunRecord
from flujo_client.contract.run_filter import FailingStep, RunStats
from flujo_client.contract.trace import TraceEvent, TraceNode
from flujo_client.explain.sentence import Part, Sentence

BUDGET = asdict(BudgetRecord("run:run_1", 0.5, 1000, 0.2, 1200, 0.1, 0, 0.0, 200))
NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
RUN = "run_0199aabbccdd0011223344556677"
FEEDBACK = "Agent execution failed with ValueError: the model said \x1b[31mnothing useful about clause 12 [red]"
FAULT = Fault("agent", "ValueError", "nothing useful", FEEDBACK, suggestion="ask again")


def drawn(renderable, width=80):
    """The lines a terminal without colour would show, without the spaces at their ends."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines), default=0) <= width
    return "\n".join(line.rstrip() for line in lines)


def lines(text):
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").rstrip(" ").splitlines())


def run_of(**changes):
    known = {
        "id": RUN,
        "reference": "shop:review",
        "fingerprint": "f" * 64,
        "name": "review",
        "version": "1.0",
        "status": "failed",
        "created_at": NOW - timedelta(minutes=3),
        "started_at": NOW - timedelta(minutes=3),
        "ended_at": NOW - timedelta(minutes=2),
        "reason": "step 'check' failed",
        "error": FAULT,
        "metadata": {"order": 17},
        "tenant": "acme",
        "tokens": 1204,
        "cost_usd": 0.0031,
    }
    return RunRecord(**{**known, **changes})


def attempt(number, status, *, events=(), **attributes):
    return TraceNode(
        name=f"attempt {number}",
        kind="attempt",
        status=status,
        offset_s=number,
        duration_s=0.4,
        attributes={"key": "k", "worker": f"w{number}", **attributes},
        events=list(events),
    )


def event(name, offset_s, level="info", **data):
    return TraceEvent(name=name, level=level, offset_s=offset_s, data=data)


def trace_of():
    retry = event("flujo.retry", 1.7, "warning", step="check", reason=FEEDBACK, delay_seconds=1.02)
    said = {"step": "check", "reason": "error", "feedback": FEEDBACK}
    done = event("step.succeeded", 0.5, step="draft", attempts=1)
    prompt = event("agent.prompt", 0.2, prompt="say " * 100)
    draft = TraceNode(
        name="draft",
        kind="step",
        status="succeeded",
        duration_s=1.2,
        attributes={"attempts": 1},
        children=[attempt(1, "succeeded", tokens=1204, cost_usd=0.0031, events=[done, prompt])],
    )
    ended = [event("step.failed", 4.0, "error", **said), event("run.failed", 4.0, "error", **said)]
    check = TraceNode(
        name="check",
        kind="step",
        status="failed",
        offset_s=1.3,
        duration_s=63.0,
        attributes={"attempts": 2},
        children=[
            attempt(1, "failed", reason="error", feedback=FEEDBACK, events=[retry]),
            attempt(2, "failed", reason="lost", feedback=FEEDBACK, deliveries=2, events=ended),
        ],
    )
    return TraceNode(
        name="review",
        kind="run",
        status="failed",
        duration_s=64.2,
        attributes={"id": RUN, "reason": "step 'check' failed", "tokens": 1204, "cost_usd": 0.0031},
        events=[event("run.enqueued", 0.0, pipeline="shop:review")],
        children=[draft, check],
    )


def test_trace():
    """Run → steps → attempts with durations, feedback, tokens, cost and events in their order; nothing is said twice (M-291)."""
    assert drawn(trace_tree(trace_of(), preview=30)) == lines(r"""
    review  failed  1 min 4 s  1,204 tokens  $0.0031
    run_0199aabbccdd0011223344556677
    step 'check' failed
    ├── +0 ms  run.enqueued  pipeline=shop:review
    ├── draft  succeeded  1.20 s
    │   └── attempt 1  succeeded  400 ms  1,204 tokens  $0.0031
    │       ├── +200 ms  agent.prompt  prompt=say say say say say say say sa…
    │       └── +500 ms  step.succeeded
    └── check  failed  1 min 3 s  2 attempts
        ├── attempt 1  failed  400 ms
        │   Agent execution failed with ValueError: the model said \x1b[31mnothing
        │   useful about clause 12 [red]
        │   └── +1.70 s  flujo.retry  delay_seconds=1.02
        └── attempt 2  failed (lost)  400 ms  delivered 2 times
            Agent execution failed with ValueError: the model said \x1b[31mnothing
            useful about clause 12 [red]
            ├── +4.00 s  step.failed  reason=error
            └── +4.00 s  run.failed  reason=error
    """)


def test_trace_shows_whole_values_on_request():
    """`--prompt-preview-len -1` cuts nothing (§2.8)."""
    assert drawn(trace_tree(trace_of(), preview=-1)).count("say") == 100


def test_waits_are_told_with_their_reasons():
    """Of how long an attempt took to begin, what is not a hand-over is told; whoever still waits in any case (§1.I)."""

    def wait(what, lasted):
        return {"for": what, "offset_s": 2.0, "duration_s": lasted}

    waits = [
        wait("answer", 63.0),
        wait("answer", None),
        wait("breaker", 30.0),
        wait("breaker", None),
        wait("rate", None),
        wait("limit", None) | {"limit": "crm", "at_once": 5, "in_use": 5},
        wait("retry", 1.2),
    ]
    waits += [wait("worker", 0.9), wait("worker", 5.0), wait("worker", None)]
    step = place("ask", "step", children=[attempt(1, "x", wait=each) for each in waits])
    told = [line.partition("400 ms")[2].strip() for line in drawn(trace_tree(step)).splitlines()[1:]]
    assert told == [
        "question open from +2.00 s to +1 min 5 s",
        "question open since +2.00 s",
        "waited 30.00 s for its model's breaker",
        "waits for its model's breaker since +2.00 s",
        "waits for its model's rate limit since +2.00 s",
        "waits for crm (5 of 5 in use) since +2.00 s",
        "waited 1.20 s to be tried again",
        "",
        "waited 5.00 s for a worker",
        "waits for a worker since +2.00 s",
    ]


def test_repairs_are_told_without_events():
    """What AROS did is read from the attempt's counters (docs/reference/events.md): events are kept for some days only."""
    repaired = {"aros.coercion.total": 2, "aros.coercion.transforms": ["json5", "str->int"], "aros.cut": 1}
    step = place(
        "read",
        "step",
        children=[
            attempt(1, "succeeded", metadata=repaired),
            attempt(2, "succeeded", metadata={"aros.coercion.total": 1}),
        ],
    )
    assert drawn(trace_tree(step)) == lines("""
    read  succeeded  2.00 s
    ├── attempt 1  succeeded  400 ms  repaired: json5, str->int  cut at the token
    │   limit
    └── attempt 2  succeeded  400 ms  repaired
    """)


def place(name, kind, status="succeeded", children=(), **attributes):
    return TraceNode(
        name=name, kind=kind, status=status, duration_s=2.0, attributes=attributes, children=list(children)
    )


def fan_out(*statuses):
    branches = [
        place(f"c{n}", "branch", status, [place("x", "step", status, [attempt(1, status)])])
        for n, status in enumerate(statuses)
    ]
    done = event("step.succeeded", 2.0, step="box", kind="parallel")
    box = place("box", "parallel", children=branches, tokens=1204, feedback="all went well", metadata={"k": 1})
    return place("review", "run", children=[box.model_copy(update={"events": [done]})])


def heads(text):
    """The lines of a container's children, without what is in them."""
    return [line[8:].rstrip() for line in text.splitlines() if line[4:7] in ("├──", "└──")]


def test_a_trace_tells_under_which_changes_a_run_continues():
    told = event("run.carried_on", 3.0, changes=["step 'a': prompt changed"])
    assert drawn(trace_tree(place("review", "run", id="run_1").model_copy(update={"events": [told]}))) == lines("""
    review  succeeded  2.00 s
    run_1
    └── +3.00 s  run.carried_on  changes=["step 'a': prompt changed"]
    """)


def test_containers_are_drawn_with_what_is_in_them():
    """Kind, time, spending and how it went, on every level; whose event it is, is not said again (M-291, M-292)."""
    assert drawn(trace_tree(fan_out("succeeded", "succeeded"))) == lines("""
    review  succeeded  2.00 s

    └── box  parallel  succeeded  2.00 s  1,204 tokens  all went well
        ├── c0  branch  succeeded  2.00 s
        │   └── x  succeeded  2.00 s
        │       └── attempt 1  succeeded  400 ms
        ├── c1  branch  succeeded  2.00 s
        │   └── x  succeeded  2.00 s
        │       └── attempt 1  succeeded  400 ms
        └── +2.00 s  step.succeeded  kind=parallel
    """)


def test_a_failure_is_said_where_it_happened():
    """Those above it have its words inside theirs, and do not repeat them; what is their own is shown (M-025)."""
    step = place("x", "step", "failed", [attempt(1, "failed", feedback="it broke")])
    iteration = place("box#1", "iteration", "failed", [step], feedback="it broke")
    box = place("box", "loop", "failed", [iteration], attempts=1, feedback="in iteration 1: it broke")
    merge = place("meet", "parallel", "failed", [place("a", "branch")], feedback="two branches changed 'total'")
    text = drawn(trace_tree(place("review", "run", "failed", [box, merge])))
    assert text.count("it broke") == 1
    assert "two branches changed 'total'" in text


def test_an_event_of_another_step_names_it():
    """One commit may end a step and the containers around it (M-291)."""
    inner, outer = event("step.failed", 1.0, step="x"), event("step.failed", 1.0, step="box")
    step = place("x", "step", "failed", [attempt(1, "failed", events=[inner, outer])])
    box = place("box", "loop", "failed", [place("box#1", "iteration", "failed", [step])])
    said = [line.split("+1.00 s  ")[1] for line in drawn(trace_tree(box)).splitlines() if "+1.00" in line]
    assert said == ["step.failed", "step.failed  step=box"]


def test_a_long_fan_out_is_folded():
    """The first, the last and the first that went wrong are drawn; the rest is counted (M-291)."""
    statuses = ["succeeded"] * 100
    statuses[40] = "failed"
    assert heads(drawn(trace_tree(fan_out(*statuses)))) == [
        "c0  branch  succeeded  2.00 s",
        "c1  branch  succeeded  2.00 s",
        "… 38 more branches, all succeeded",
        "c40  branch  failed  2.00 s",
        "… 58 more branches, all succeeded",
        "c99  branch  succeeded  2.00 s",
        "+2.00 s  step.succeeded  kind=parallel",
    ]


def test_what_is_folded_says_how_it_went():
    """Not every failure is drawn, but each is counted (M-291)."""
    text = drawn(trace_tree(fan_out(*["failed"] * 30, *["running"] * 9, *["succeeded"] * 1_300)))
    assert "… 1,335 more branches, 1,299 succeeded, 27 failed, 9 running" in heads(text)


def test_nothing_is_folded_on_request():
    """`--full` draws all (§2.8)."""
    assert len(heads(drawn(trace_tree(fan_out(*["succeeded"] * 100), is_full=True)))) == 101


def nested(levels):
    node = place("write", "step", "failed", [attempt(1, "failed", feedback="the model said nothing useful " * 4)])
    for level in range(levels):
        node = place(f"box{level}", "loop", "failed", [place(f"box{level}#1", "iteration", "failed", [node])])
    return place("review", "run", "failed", [node])


def test_a_deep_trace_is_legible():
    """80 columns are enough for what nests five deep (SYS-29)."""
    assert "the model said nothing" in drawn(trace_tree(nested(5)))


def test_what_is_too_deep_to_be_drawn_is_counted():
    """Nothing vanishes without a word (SYS-29)."""
    text = drawn(trace_tree(nested(20)))
    assert " ".join(text.split()).endswith("… 28 places below, which --full draws")
    assert "attempt 1" in drawn(trace_tree(nested(20), is_full=True), width=300)


def test_the_deepest_trace_is_printed_whole_as_json(capsys):
    """What a program asked for is not cut (M-291)."""
    show_json(nested(20).model_dump())
    assert "attempt 1" in capsys.readouterr().out


def test_runs():
    """A run in a line; a name that is too long wraps, an id never does (SYS-29)."""
    runs = [run_of(), run_of(name="a-very-long-name-[red]-for-a-pipeline", status="running", ended_at=None)]
    assert drawn(runs_table(runs, NOW)) == lines("""
    run                               pipeline             status     age       took
    run_0199aabbccdd0011223344556677  review               failed   3 min  1 min 0 s
    run_0199aabbccdd0011223344556677  a-very-long-name-[r  running  3 min
                                      ed]-for-a-pipeline
    """)


def test_child_runs_are_listed_at_80_columns():
    """Their long ids continue below themselves, and leave the rest its room (SYS-29)."""
    assert drawn(runs_table([run_of(id=f"{RUN}.01234567890123456789")], NOW)) == lines("""
    run                               pipeline  status    age       took
    run_0199aabbccdd0011223344556677  review    failed  3 min  1 min 0 s
      .01234567890123456789
    """)


def test_runs_of_schedules_keep_their_ids_whole():
    """They end with a time, which the runs of other schedules and of other days have too."""
    runs = [run_of(id="nightly.20270104T013000Z"), run_of(id="order-7", status="running", ended_at=None)]
    shown = {drawn(runs_table(runs, NOW, is_narrow=is_narrow)) for is_narrow in (False, True)}
    assert shown == {
        lines("""
    run                       pipeline  status     age       took
    nightly.20270104T013000Z  review    failed   3 min  1 min 0 s
    order-7                   review    running  3 min
    """)
    }


def test_runs_on_a_narrow_terminal():
    """The end of an id names its run, and leaves the pipeline's name its room."""
    background = run_of(id=f"{RUN}.01234567890123456789", parent_run=RUN, name="a-very-long-name-for-a-pipeline")
    assert drawn(runs_table([background], NOW, parents=True, is_narrow=True)) == lines("""
    run            pipeline                         status    age       took
    23456789       a-very-long-name-for-a-pipeline  failed  3 min  1 min 0 s
      of 44556677
    """)


def sentence(text, tone="bad", fix=""):
    return Sentence("error", tone, (Part("text", text),), fix)


def test_runs_say_where_they_stopped_at_80_columns():
    """Below the name of each run that is not simply done; a stored text moves no terminal."""
    done = run_of(id=f"{RUN[:-1]}8", status="succeeded")
    sentences = {RUN: sentence("Failed at check: E: \x1b[31m[red] in\ndesk.py:41."), done.id: sentence("Done.", "ok")}
    assert drawn(runs_table([run_of(), done], NOW, sentences=sentences, is_narrow=True)) == lines(r"""
    run       pipeline                                   status       age       took
    44556677  review                                     failed     3 min  1 min 0 s
              Failed at check: E: \x1b[31m[red] in
              desk.py:41.
    44556678  review                                     succeeded  3 min  1 min 0 s
    """)


def test_runs_that_a_program_reads_have_a_line_each():
    runs = [run_of(), run_of(id="run_2"), run_of(id=f"{RUN}.01234567890123456789")]
    table = runs_table(runs, NOW, sentences={RUN: sentence("Failed.\nx")}, in_lines=True)
    [head, first, second, child] = drawn(table, width=200).splitlines()
    assert child.startswith(f"{RUN}.01234567890123456789  review")
    assert head.endswith("explanation")
    assert first.endswith("Failed. x")
    assert second.endswith("1 min 0 s")


def test_a_sentence_and_what_can_be_done():
    assert drawn(sentence_lines(sentence("Waits at pay.", fix="Start one:\x1b[2J flujo worker"))) == (
        "Waits at pay.\n→ Start one:\\x1b[2J flujo worker"
    )
    assert drawn(sentence_lines(sentence("Done."))) == "Done."


def test_steps():
    """A step in a line, its attempts summed up (SYS-29)."""
    assert drawn(steps_table(trace_of())) == lines("""
    step   status     attempts       took  tokens     cost
    draft  succeeded         1     1.20 s   1,204  $0.0031
    check  failed            2  1 min 3 s
    """)


def test_steps_that_are_containers():
    """Their kind stands beside their name; they count as one (SYS-29)."""
    loop = place("refine", "loop", children=[place(f"refine#{n}", "iteration") for n in (1, 2)], attempts=2, tokens=7)
    assert drawn(steps_table(place("review", "run", children=[loop]))) == lines("""
    step          status     attempts    took  tokens  cost
    refine  loop  succeeded         2  2.00 s       7
    """)


def test_spans():
    """A place in a line, written as addresses and keys are; a column that says nothing is left out (§2.8)."""
    step = place("x", "step", "failed", [attempt(1, "failed"), attempt(2, "failed", tokens=1204)], attempts=2)
    loop = place("box", "loop", "failed", [place("box#1", "iteration", "failed", [step])])
    spans = span_shapes(
        place("review", "run", "failed", [loop, place("meet", "parallel", children=[place("a", "branch")])])
    )
    assert drawn(spans_table(spans)) == lines("""
    place             status          at    took  attempts  tokens
    box  loop         failed       +0 ms  2.00 s             1,204
    box#1  iteration  failed       +0 ms  2.00 s             1,204
    box#1/x           failed       +0 ms  2.00 s         2   1,204
    box#1/x:1         failed     +1.00 s  400 ms
    box#1/x:2         failed     +2.00 s  400 ms             1,204
    meet  parallel    succeeded    +0 ms  2.00 s
    meet/a  branch    succeeded    +0 ms  2.00 s
    """)
    assert list(spans[0]) == [
        "path",
        "offset_s",
        "name",
        "kind",
        "status",
        "attempts",
        "duration_s",
        "tokens",
        "cost_usd",
        "feedback",
    ]


STATS = RunStats(
    NOW - timedelta(hours=24), NOW, {"failed": 1, "succeeded": 1203, "paused": 2}, 1.5, 90.0, 1204, 0.5,
    (FailingStep("review", "check [red]", 3, 1300, 2),),
)  # fmt: skip


def test_stats():
    """How runs ended, what they took and cost, and where they fail (§2.8)."""
    assert drawn(stats_card(STATS)) == lines("""
    enqueued since  2026-01-01 12:00:00 UTC
    runs            1,206
      succeeded     1,203
      paused        2
      failed        1
    succeeded       99.9% of the runs that have ended
    took            1.50 s (median), 1 min 30 s (95th percentile)
    tokens          1,204
    cost            $0.5

    failing step  pipeline  failed              of  runs
    check [red]   review         3  1,300 attempts     2
    """)


def test_stats_of_nothing():
    """No rate and no duration is made up where nothing has ended."""
    empty = RunStats(NOW, NOW, {"running": 1}, None, None, 0, 0.0, ())
    assert drawn(stats_card(empty)).splitlines()[1:] == ["runs            1", "  running       1"]
    assert stats_shape(empty)["success_rate"] is None


def test_keys_of_stats():
    """Programs rely on these keys (SYS-29)."""
    assert list(stats_shape(STATS)) == [
        "since", "until", "runs", "by_status", "retried", "success_rate", "duration_p50_s", "duration_p95_s", "tokens", "cost_usd", "failing_steps",
    ]  # fmt: skip
    assert list(stats_shape(STATS)["failing_steps"][0]) == ["pipeline", "step", "failed", "attempts", "runs"]


def event_record(name, attempt=None, level="info", **data):
    return EventRecord(7, NOW, RUN, name, level, attempt and f"{RUN}:{attempt}", data, cursor="3-7")


def test_a_story_is_told_in_lines():
    """When, at which step and what; a long value continues below itself, and the run's own lines name no step (SYS-20)."""
    story = [
        event_record("run.enqueued", pipeline="shop:review"),
        event_record("step.succeeded", "box#2/legal:x:1", step="x", attempts=1),
        event_record("step.succeeded", ":x:1", step="box", kind="loop"),
        event_record("looked_up", ":x:1", hits=None),
        event_record("flujo.retry", ":check:1", "warning", step="check", reason=FEEDBACK, delay_seconds=1.02),
        event_record("run.failed", ":check:1", "error", reason="x" * 60),
    ]
    assert drawn(Group(*(event_line(each, 50) for each in story))) == lines(r"""
    12:00:00                      run.enqueued  pipeline=shop:review
    12:00:00  box#2/legal/x       step.succeeded  attempts=1
    12:00:00  box                 step.succeeded  kind=loop
    12:00:00  x                   looked_up
    12:00:00  check               flujo.retry  reason=Agent execution failed with
                                  ValueError: the model …  delay_seconds=1.02
    12:00:00                      run.failed
                                  reason=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
                                  xxxxxxx…
    """)


def test_keys_of_an_event():
    """Programs rely on these keys (SYS-29)."""
    assert list(event_shape(event_record("x"))) == ["id", "at", "run", "name", "level", "attempt", "data", "cursor"]


CALL = {"type": ["boolean", "string", "object"]}
CALLS = {"type": "object", "properties": {"c0": CALL, "c1": CALL}}
"""What a durable agent's calls that wait are answered with."""
EITHER = [("approve", ""), ("reject", ""), ("answer", " --input-json JSON")]


def question(schema=None, address="", **rest):
    known = {
        "run_id": RUN,
        "pipeline": "review",
        "address": address,
        "step": "ask me",
        "key": "k",
        "message": "go\x1b[2J?",
    }
    return Approval(**{**known, "schema": schema, "asked_at": NOW, "run_status": "paused", **rest})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (question(), [f"approve {RUN} --step 'ask me'", f"reject {RUN} --step 'ask me'", f"answer {RUN} --step 'ask me' VALUE"]),
        (question({"type": "boolean"}, "box#1"), [f"approve {RUN} --step 'ask me' --address 'box#1'", f"reject {RUN} --step 'ask me' --address 'box#1'"]),
        (question({"type": "string"}), [f"answer {RUN} --step 'ask me' VALUE"]),
        (question({"type": "array"}), [f"answer {RUN} --step 'ask me' --input-json JSON"]),
        (question(CALL), [f"{verb} {RUN} --step 'ask me'{value}" for verb, value in EITHER]),
        (question(CALLS), [f"{verb} {RUN} --step 'ask me'{value}" for verb, value in EITHER]),
    ],
    ids=["anything", "a boolean in a loop", "a text", "a list", "a call that waits", "two calls that wait"],
)  # fmt: skip
def test_a_question_is_told_with_the_commands_that_answer_it(asked, said):
    """M-449; what it says cannot move a terminal."""
    head, *commands = drawn(question_lines(asked), width=200).splitlines()
    assert (head, commands) == (f"{asked.place} asks: go\\x1b[2J?", [f"  flujo approvals {each}" for each in said])


def test_yes_and_no_are_said_as_the_question_takes_them():
    assert verdict(CALL, approved=False) is False
    assert verdict(CALLS, approved=True) == {"c0": True, "c1": True}
    for schema in (
        None,
        {"type": "object", "properties": {"approved": {"type": "boolean"}}},
        {"type": "object", "properties": {}},
    ):
        assert verdict(schema, approved=True) == {"approved": True}


def test_an_open_question_is_legible_however_deep_it_stands():
    """SYS-17: where it is takes no room from what it asks."""
    asked = question(
        address="who decides/true", asked_at=NOW - timedelta(seconds=3), expires_at=NOW + timedelta(hours=5)
    )
    assert drawn(approvals_list([asked], NOW)) == lines(f"""
    {RUN}  who decides/true/ask me
      go\\x1b[2J?
      asked 3 s ago, expires in 5 h
    """)


def test_a_run_in_a_line():
    """What it is and how it went (SYS-29)."""
    assert summary(run_of()) == f"{RUN}  review  failed  1 min 0 s  1,204 tokens  $0.0031  step 'check' failed"
    live = run_of(status="running", ended_at=None, tokens=0, cost_usd=0.0, reason=None)
    assert summary(live) == f"{RUN}  review  running"


def test_workers_of_starts_and_joins_are_named():
    """Who moved a container worked on the run too (SYS-29)."""
    box = place("box", "parallel", work=[{"worker": "w9"}])
    assert "workers    w9" in drawn(run_card(run_of(), place("review", "run", children=[box]), NOW, verbose=True))


def test_progress():
    """What is at work, by its place; work that is not a step is not shown (SYS-29)."""
    recorder = Recorder()
    recorder.attempt("", "box", kind="start")
    assert progress_of(recorder.attempts) == "box succeeded"
    recorder.attempt("", "a")
    assert progress_of(recorder.attempts) == "a succeeded"
    for number in (1, 2, 3):
        recorder.attempt(f"box/c{number}", "x", number, status="running")
    recorder.attempt("box", "box", kind="join", status="ready")
    assert progress_of(recorder.attempts) == "box/c3/x running, attempt 3, and 2 others"


def test_run_card():
    """One run at a glance: how it went, why, when, and its steps (SYS-29)."""
    assert drawn(run_card(run_of(), trace_of(), NOW, verbose=True)) == lines(r"""
    review  failed  1 min 4 s  1,204 tokens  $0.0031
    run_0199aabbccdd0011223344556677
    step 'check' failed
    Agent execution failed with ValueError: the model said \x1b[31mnothing useful
    about clause 12 [red]

    reference  shop:review
    enqueued   2026-01-02 11:57:00 UTC (3 min ago)
    started    2026-01-02 11:57:00 UTC (3 min ago)
    ended      2026-01-02 11:58:00 UTC (2 min ago)
    tenant     acme
    metadata   {"order":17}
    version    1.0, fingerprint
               ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff
    workers    w1, w2

    step   status     attempts       took  tokens     cost
    draft  succeeded         1     1.20 s   1,204  $0.0031
    check  failed            2  1 min 3 s
    """)


def test_a_deadline_lies_ahead():
    """A time to come is told as such (SYS-29)."""
    run = run_of(ended_at=None, deadline_at=NOW + timedelta(seconds=90))
    assert "deadline   2026-01-02 12:01:30 UTC (in 1 min)" in drawn(run_card(run, trace_of(), NOW))


def test_sections():
    """A value under its title, text as it is and the rest as JSON; nothing is said to be none (SYS-29)."""
    assert drawn(section("output", {"text": "[red]"})) == '\noutput\n  {\n    "text": "[red]"\n  }'
    assert drawn(section("context", None)) == "\ncontext\n  none"


def test_the_whole_error():
    """All there is to know about an error, and no empty lines for what there is not (U-42)."""
    shape = details_shape(run_of(), trace_of())["error"]
    assert drawn(error_section(shape)) == lines(r"""

    error
      type        ValueError
      message     nothing useful
      category    agent
      suggestion  ask again
      feedback    Agent execution failed with ValueError: the model said
                  \x1b[31mnothing useful about clause 12 [red]
    """).replace("error\n", "\nerror\n", 1)


def test_services():
    """What is there, what is not and why, who works and what waits (SYS-29)."""
    wrong = "the broker does not answer at redis://127.0.0.1:1/0: Error 111 connecting to 127.0.0.1:1."
    state = {
        "postgres": {"ok": True, "url": "postgresql://x", "error": None},
        "redis": {"ok": False, "url": "redis://y", "error": wrong},
        "schema": 1,
        "workers": [{"id": "w1", "slots": 9, "is_stopping": True, "slowed": None, "lacks": ["value_keys.2026b"]}],
        "other_workers": 0,
        "backlog": {"ready": {"count": 1200, "oldest_s": 99.0}, "queued": {"count": 0, "oldest_s": 0.0}},
        "waiting_runs": {"count": 7, "oldest_s": 5.0},
        "parked": [
            {
                "reference": "m:a",
                "fingerprint": "0a1b",
                "build": None,
                "runs": 2,
                "is_pinned": False,
                "change": None,
                "reason": "no 'm' here",
            },
            {
                "reference": "m:p",
                "fingerprint": "2c3d",
                "build": "7",
                "runs": 1,
                "is_pinned": True,
                "change": "flujo worker --build 7",
            },
            {"reference": "m:p", "fingerprint": "4d5e", "build": "8", "runs": 1, "is_pinned": True, "change": None},
        ],
        "owed_hooks": {"count": 3, "oldest_s": 7200.0},
        "limits": [{"name": "crm", "at_once": 5, "in_use": 5, "waiting": 1}],
        "gates": [
            {"name": "limit 'erp'", "most": 2, "taken": 2, "waiting": 7},
            {"name": "debounce 'x'", "most": None, "taken": 0, "waiting": 1},
        ],
        "breakers": [{"model": "openai:gpt-5", "state": "half_open", "since_s": 99.0}],
        "budgets": [{**BUDGET, "scope": "tenant:acme:2026-01-01"}],
        "locks": [],
        "refused": {"count": 1300, "reasons": {"foreign": 100, "malformed": 1200}, "kept": 1000, "key": "x:letters"},
    }
    assert drawn(services_table(state)) == lines("""
    postgres       ok      postgresql://x
    redis          not ok  the broker does not answer at redis://127.0.0.1:1/0:
                           Error 111 connecting to 127.0.0.1:1.
    refused        1,300   100 foreign, 1,200 malformed; look: redis-cli lrange
                           x:letters 0 9
    schema         1
    workers        0       no run can continue without one
    stopping       1       take no more work: w1
    ready          1,200   oldest 1 min
    queued         0
    not admitted   7       oldest 5 s
    hooks pending  3       oldest 2 h
    lacks key      1       w1 takes no work: it lacks value_keys.2026b
    breaker                openai:gpt-5: half open for 1 min
    parked         2       m:a 0a1b: no 'm' here
    parked         1       m:p 2c3d, build 7: pinned, no live worker is known to
                           have that code
                           → flujo worker --build 7
    budget                 tenant:acme:2026-01-01: $0.2 of $0.5 spent, $0.1
                           reserved; 1,200 of 1,000 tokens spent, 200 too much
    limit                  crm: 5 of 5 in use, 1 attempt waiting
    run limit              limit 'erp': 2 of 2 places taken, 7 runs waiting
    run limit              debounce 'x': 1 run waiting
    …              1       more lines, which `flujo status --json` has
    """)
    state["locks"] = [{"pid": 7, "user": "ana", "application": "psql", "state": "idle in transaction", "age_s": 312.0}]
    assert "rows, by pid 7 (ana, psql, idle in transaction for" in drawn(services_table(state))


def test_services_fit_on_a_screen():
    """Of each kind the first ones are shown, and the rest is counted; all of it is in the JSON."""
    many = range(20)
    none = {"count": 0, "oldest_s": 0.0}
    service = {"ok": True, "url": "postgresql://flujo@database.example.com:5432/flujo", "error": None}
    state = {
        "postgres": service,
        "redis": service,
        "schema": 1,
        "workers": [
            {
                "id": f"host-{each}-abcdef",
                "slots": 9,
                "is_stopping": each % 2 == 0,
                "lacks": (),
                "slowed": {"at_once": 8, "of": 500, "late": 45, "waited_for_cpu": 40},
            }
            for each in range(40)
        ],
        "other_workers": 0,
        "backlog": {"ready": none, "queued": none, "running": none},
        "waiting_runs": none,
        "owed_hooks": none,
        "parked": [
            {
                "reference": f"shop.pipelines:number_{each}",
                "fingerprint": "2c3d" * 3,
                "build": "7",
                "runs": 1,
                "is_pinned": True,
                "change": "flujo worker --build 7",
            }
            for each in many
        ],
        "limits": [{"name": f"crm {each}", "at_once": 5, "in_use": 5, "waiting": 1} for each in many],
        "gates": [{"name": f"limit 'erp {each}'", "most": 2, "taken": 2, "waiting": 7} for each in many],
        "breakers": [{"model": f"openai:gpt-{each}", "state": "opened", "since_s": 99.0} for each in many],
        "budgets": [{**BUDGET, "scope": f"tenant:acme{each}:2026-01-01"} for each in many],
        "locks": [],
        "refused": None,
    }
    shown = drawn(services_table(state))
    assert len(shown.splitlines()) <= 24
    assert {"stopping", "slowed", "breaker", "parked", "budget", "limit", "run"} <= {
        line.split()[0] for line in shown.splitlines()
    }
    left = int(re.search(r"^… +(\d+) +more lines", shown, re.MULTILINE)[1])
    kinds = ("slowed", "breaker", "parked", "budget", "limit", "run limit")
    assert left == 120 - sum(shown.count(f"\n{kind}") for kind in kinds)


@pytest.mark.parametrize(
    ("changed", "written"),
    [
        ({"limit_tokens": None}, "$0.2 of $0.5 spent, $0.1 reserved"),
        ({"limit_usd": None, "overrun_tokens": 0}, "1,200 of 1,000 tokens spent"),
        ({"limit_usd": 0.0, "limit_tokens": 1, "spent_tokens": 0, "overrun_tokens": 0, "spent_usd": 0.0, "reserved_usd": 0.0},
         "$0 of $0 spent; 0 of 1 token spent"),
    ],
)  # fmt: skip
def test_a_budget_is_told_in_what_it_limits(changed, written):
    assert budget_line({**BUDGET, **changed}) == written


def test_a_run_is_shown_with_its_budgets():
    """Each by what it is of: the run, a step, a tenant's day."""
    scopes = ("run:run_1", "step:run_1:draft/loop/write", "tenant:acme:2026-01-01")
    shown = drawn(run_card(run_of(), trace_of(), NOW, [{**BUDGET, "scope": each} for each in scopes]), width=160)
    told = [line.split("  ")[0] for line in shown.splitlines() if " spent" in line]
    assert told == ["budget", "budget of draft/loop/write", "budget of acme:2026-01-01"]


def test_keys_of_a_run():
    """Programs rely on these keys (SYS-29)."""
    assert list(run_shape(run_of())) == [
        "id", "pipeline", "version", "reference", "fingerprint", "status", "reason", "tenant", "metadata", "created_at",
        "started_at", "ended_at", "deadline_at", "cancel_requested_at", "forked_from", "from_step", "retried_as", "duration_s", "tokens",
        "cost_usd", "parent", "background", "retry_of", "waits_for", "unreadable",
    ]  # fmt: skip
    assert (run_shape(run_of())["duration_s"], run_shape(run_of(ended_at=None))["duration_s"]) == (60.0, None)


def test_keys_of_a_runs_details():
    """Steps and error come with a run, values on request (SYS-29)."""
    details = details_shape(run_of(), trace_of(), input=1)
    assert list(details)[-4:] == ["budgets", "error", "steps", "input"]
    assert list(BUDGET) == [
        "scope", "limit_usd", "limit_tokens", "spent_usd", "spent_tokens", "reserved_usd", "reserved_tokens", "overrun_usd", "overrun_tokens",
    ]  # fmt: skip
    assert list(details["error"]) == [
        "type",
        "message",
        "code",
        "category",
        "suggestion",
        "feedback",
        "traceback",
        "details",
    ]
    assert details_shape(run_of(error=None), trace_of())["error"] is None


def test_keys_of_a_step():
    """A step's figures are those of all its attempts, its feedback the last one's (SYS-29)."""
    check = trace_of().children[1]
    check.children[0].attributes |= {"tokens": 3, "cost_usd": 0.5}
    check.children[1].attributes |= {"tokens": 4, "cost_usd": 0.25}
    assert step_shape(check) == {
        "name": "check",
        "kind": "step",
        "status": "failed",
        "attempts": 2,
        "duration_s": 63.0,
        "tokens": 7,
        "cost_usd": 0.75,
        "feedback": FEEDBACK,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0316, "32 ms"),
        (1, "1.00 s"),
        (59.9, "59.90 s"),
        (60, "1 min 0 s"),
        (119.9, "1 min 59 s"),
        (3600, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds, text):
    """Time spans are as exact as people need them (SYS-29)."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (200_000, "2 d")]
)
def test_ages(seconds, text):
    """Ages are told in one unit (SYS-29)."""
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("dollars", "text"), [(0, "$0"), (0.5, "$0.5"), (10.0, "$10"), (0.0031, "$0.0031"), (1.2345678, "$1.234568")]
)
def test_costs(dollars, text):
    """Costs are written without trailing zeros (§2.11)."""
    assert cost(dollars) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 tokens"), (1, "1 token"), (1204, "1,204 tokens")])
def test_counts(number, text):
    """One thing is not many (SYS-29)."""
    assert counted(number, "token") == text


@given(st.text())
def test_no_text_moves_a_terminal(text):
    """Whatever a model says, no control character but newline and tab reaches a terminal (SYS-29)."""
    assert all(each.isprintable() or each in "\n\t" for each in printable(text))


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"])))
def test_a_harmless_text_is_shown_as_it_is(text):
    """What moves no terminal is not changed (SYS-29)."""
    assert printable(text) == text == written(text)


@given(st.text() | st.dictionaries(st.text(), st.integers()), st.integers(0, 50))
def test_a_preview_is_one_line_and_no_longer_than_asked(value, length):
    """A preview is cut, and shows that it is (§2.8)."""
    line = in_a_line(value, length)
    assert "\n" not in line
    assert len(line) <= length + 1
    assert line == in_a_line(value) or line.endswith("…")
