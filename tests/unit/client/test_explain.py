"""Where a run stopped, and why: each cause with its sentence, word for word, from facts written by hand."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flujo_client.contract.outcome import OWN_TIMEOUT, Fault
from flujo_client.explain.facts import (
    AttemptFacts,
    FanOutFacts,
    FleetFacts,
    GateFacts,
    LimitFacts,
    QueueFacts,
    RunFacts,
    RunRowFacts,
)
from flujo_client.explain.waiting import explain

NOW = datetime(2026, 11, 28, 10, 0, tzinfo=UTC)
CALM = FleetFacts(workers=2, queues={"q": QueueFacts(4, 4), "flujo.control": QueueFacts(4)})
ASLEEP = FleetFacts()


def before(**span):
    return NOW - timedelta(**span)


def after(**span):
    return NOW + timedelta(**span)


def run(name="desk", status="running", **row):
    ended = None if status in ("queued", "running", "parked") else NOW
    facts = {
        "now": NOW,
        "id": f"run_{name}",
        "reference": f"desk:{name}",
        "created_at": before(minutes=5),
        "ended_at": ended,
    }
    return RunRowFacts(**{**facts, "name": name, "status": status, **row})


def attempt(step="pay", **row):
    number, address = row.get("number", 1), row.get("address", "")
    facts = {
        "run_id": "run_desk",
        "key": f"run_desk:{address}:{step}:{number}",
        "kind": "step",
        "status": "queued",
        "queue": "q",
    }
    times = {"created_at": before(minutes=5), "available_at": before(minutes=5)}
    return AttemptFacts(**{**facts, **times, "step": step, "address": address, "number": number, **row})


def fault(type_name="ValueError", message="bad", code="", retryable=True, **details):
    return Fault("agent", type_name, message, message, code=code, retryable=retryable, details=details)


def failed(step, error, fleet=CALM, name="desk", **row):
    """Return the facts of a run that failed at a step."""
    ended = {"status": "failed", "fault": error, "started_at": before(minutes=4), "ended_at": before(minutes=3)}
    return RunFacts(run=run(name, "failed", fault=error), fleet=fleet, failed=attempt(step, **{**ended, **row}))


def live(fleet=CALM, more=None, **row):
    return RunFacts(run=run(), fleet=fleet, live=(attempt(**row),), **(more or {}))


def gated(name, **gate):
    found = GateFacts(**{"name": name, "most": 1, "taken": 1, "ahead": 0, **gate})
    return RunFacts(run=run(status="queued"), fleet=CALM, gate=found)


def ended(status, **row):
    return RunFacts(run=run(status=status, **row), fleet=CALM)


FLOAT = fault("ValueError", "could not convert string to float: 'n/a'", file="desk.py", line=41)
IN_TOTAL = failed("total", FLOAT, number=2, max_attempts=2)
BUSY = fault("ModelHTTPError", "…", status=429, model="openai:busy-1", answer="rate limit reached for busy-1")
WORKS = {"status": "running", "worker": "w1", "has_lease": True, "started_at": before(minutes=9)}
CRAWL = attempt("crawl", status="cancelled", started_at=before(minutes=2))
QUESTION = {"message": "Refund order A-7?\n\nSee the order.", "schema": {}}
BUDGET = {"code": "USAGE_LIMIT_EXCEEDED", "type_name": "UsageLimitExceededError"}
HOLDERS = LimitFacts(at_once=2, holders=("run_444e13", "run_063cb7"), in_line={"run_desk::pay:1": 0})
PERSON = live(step="approve", kind="resume", status="paused", available_at=after(days=5, hours=23), question=QUESTION)
CAUSES = {
    "error": (
        IN_TOTAL,
        "Failed at total, attempt 2 of 2: ValueError: could not convert string to float: 'n/a' in desk.py:41.",
    ),
    "error in an item": (
        failed(
            "label",
            fault("KeyError", "'language'", file="desk.py", line=48),
            address="classify#4",
            around="map",
            siblings=40,
        ),
        "Failed at label, item 4 of 40 of classify: KeyError: 'language' in desk.py:48.",
    ),
    "error in an iteration": (
        failed(
            "score",
            fault(message="primary index is empty", file="desk.py", line=161),
            address="refine#1",
            around="loop",
        ),
        "Failed at score, iteration 1 of refine: ValueError: primary index is empty in desk.py:161.",
    ),
    "timeout": (
        failed(
            "ask_crm",
            fault("TimeoutError", "no answer", "STEP_TIMEOUT", timeout_s=1.5, file="desk.py", line=63),
            number=2,
            max_attempts=2,
        ),
        "Failed at ask_crm, attempt 2 of 2: no answer within 1.5 s, while at desk.py:63.",
    ),
    "timeout in a branch": (
        failed(
            "check",
            fault("TimeoutError", "no answer", "STEP_TIMEOUT", timeout_s=1, file="late.py", line=5),
            address="drafts/legal",
        ),
        "Failed at check, in drafts/legal: no answer within 1 s, while at late.py:5.",
    ),
    "own timeout": (
        failed("call", fault("TimeoutError", OWN_TIMEOUT, file="own_timeout.py", line=4), latency_s=0.208),
        "Failed at call: a TimeoutError of its own code after 208 ms in own_timeout.py:4.",
    ),
    "own timeout with a message": (
        failed("call", fault("TimeoutError", "ftp.example is slow", file="desk.py", line=9)),
        "Failed at call: TimeoutError: ftp.example is slow in desk.py:9.",
    ),
    "missing module": (
        failed(
            "charge",
            fault("ModuleNotFoundError", "No module named 'stripe_sdk'", file="desk.py", line=142),
            worker="worker-11035",
        ),
        "Failed at charge: No module named 'stripe_sdk' on worker worker-11035 (desk.py:142).",
    ),
    "provider": (
        failed("answer", BUSY),
        "Failed at answer: the model's provider answered 429 rate limit reached for busy-1.",
    ),
    "refused output": (
        failed(
            "judge",
            fault(
                "AgentIOValidationError",
                "…",
                "AGENT_IO_VALIDATION",
                model="openai:odd-1",
                pointer="/score",
                rule="maximum",
                what="expected limit 10, found integer 42",
                more=1,
            ),
            number=2,
            max_attempts=2,
        ),
        "Failed at judge, attempt 2 of 2: the answer of openai:odd-1 was refused at /score: expected limit 10, found integer 42, and 1 more place.",
    ),
    "rejected": (
        failed(
            "letter",
            fault("ValidationError", "…", "VALIDATION", by="polite", why="the letter does not greet the customer"),
        ),
        "Failed at letter: polite rejected the output: “the letter does not greet the customer”.",
    ),
    "poison": (
        failed("thumbnail", fault("AttemptLost", "…", "ATTEMPT_LOST", how="exit code 9"), losses=4, losses_alone=2),
        "Failed at thumbnail: its process died 5 times, 3 of them while nothing else ran in it; the last time with exit code 9.",
    ),
    "budget of a tenant": (
        failed(
            "draft",
            fault(
                **BUDGET,
                budget="tenant",
                name="thrifty",
                day="2026-11-28",
                unit="usd",
                limit=0.05,
                spent=0.084,
                spender="draft",
            ),
        ),
        "Stopped after draft: the budget of tenant thrifty for 2026-11-28 of $0.05 is used up ($0.084 spent).",
    ),
    "budget": (
        failed("draft", fault(**BUDGET, budget="run", unit="usd", limit=0.05, spent=0.084, spender="draft")),
        "Stopped after draft: the run's budget of $0.05 is used up ($0.084 spent).",
    ),
    "budget beside others": (
        failed(
            "draft", fault(**BUDGET, budget="run", unit="usd", limit=0.05, spent=0.04, reserved=0.02, spender="draft")
        ),
        "Stopped after draft: the run's budget of $0.05 is used up ($0.04 spent, $0.02 reserved).",
    ),
    "budget refused": (
        failed("draft", fault(**BUDGET, budget="run", unit="usd", limit=0.05, spent=0.004, asked=0.07, reserved=0)),
        "Did not start draft: it asks for $0.07, and the run's budget of $0.05 has $0.004 spent and $0 reserved.",
    ),
    "limit reached": (
        failed(
            "store", fault("ExecutionError", "the limit 'crm' is reached: 2 of 2 places are taken", "LIMIT_REACHED")
        ),
        "Failed at store: the limit 'crm' is reached: 2 of 2 places are taken, and it does not wait for one.",
    ),
    "no branch": (
        failed(
            "route",
            fault(
                "ExecutionError",
                "the condition of 'route' answered 'fax'; its branches are mail, and it has no default",
                "NO_BRANCH",
            ),
        ),
        "Failed at route: the condition of 'route' answered 'fax'; its branches are mail, and it has no default.",
    ),
    "unanswered": (
        failed("approve", fault("HumanInputError", "…", "QUESTION_EXPIRED", waited_s=1.5), kind="resume"),
        "Failed at approve: nobody answered its question within 1.5 s.",
    ),
    "aborted": (
        failed("check", fault("PipelineAbortSignal", "the customer withdrew the complaint", "PIPELINE_ABORT")),
        "Stopped by its own code at check: “the customer withdrew the complaint”.",
    ),
    "deadline": (
        replace(ended("expired", created_at=before(seconds=13), deadline_at=before(seconds=1)), failed=CRAWL),
        "Ran out of time while at crawl: its deadline of 12 s passed.",
    ),
    "cancelled": (
        replace(ended("cancelled", canceller="mona", cancel_note="wrong shop"), failed=CRAWL),
        "Cancelled by mona while at crawl: “wrong shop”.",
    ),
    "cancelled at an event": (
        replace(ended("cancelled"), failed=attempt("pay", kind="resume", question={"event": "paid"})),
        "Cancelled by someone who gave no name while it waited for event paid at pay.",
    ),
    "cancelled at a question": (
        replace(ended("cancelled"), failed=attempt("approve", kind="resume", question=QUESTION)),
        "Cancelled by someone who gave no name while it waited for an answer at approve.",
    ),
    "cancelled asleep": (
        replace(ended("cancelled"), failed=attempt("nap", waits_for="sleep")),
        "Cancelled by someone who gave no name while it slept at nap.",
    ),
    "replaced in a schedule": (
        ended(
            "cancelled",
            replaced_by="sync.20270104T013000Z",
            reason="replaced by run sync.20270104T013000Z (singleton 'schedule sync')",
        ),
        "Replaced by run sync.20270104T013000Z: singleton 'schedule sync'.",
    ),
    "replaced": (
        ended(
            "cancelled",
            replaced_by="run_f4b54b",
            reason="replaced by run run_f4b54b (debounce 'k' of pipeline quote of tenant 'acme')",
        ),
        "Replaced by run f4b54b: debounce 'k' of pipeline quote of tenant 'acme'.",
    ),
    "parent ended": (
        ended("cancelled", reason="parent ended"),
        "Stopped, because the run it belongs to ended.",
    ),
    "child failed": (
        RunFacts(run=run("order", "failed", fault=FLOAT), fleet=CALM, child=("run_4a06cb", explain(IN_TOTAL))),
        "Failed in its child run 4a06cb: failed at total, attempt 2 of 2: ValueError: could not convert string to float: 'n/a' in desk.py:41.",
    ),
    "unreadable": (
        RunFacts(run=run(status="failed", fault=fault("Unreadable", "the plan is damaged", "UNREADABLE")), fleet=CALM),
        "Failed, because one of its rows is damaged or missing: the plan is damaged.",
    ),
    "import": (
        ended(
            "parked",
            parked={"kind": "import", "what": "pipeline 'gone:pipeline' not found: no module named 'gone'", "at": NOW},
        ),
        "Parked: no worker can load it: pipeline 'gone:pipeline' not found: no module named 'gone'.",
    ),
    "newer code": (
        ended("parked", parked={"kind": "newer", "what": "12bbe80ddf9f", "at": NOW}),
        "Parked: the workers were started before its code (plan 12bbe80ddf9f).",
    ),
    "changed code": (
        ended("parked", parked={"kind": "code", "what": "step 'score' was renamed to 'rank'", "at": NOW}),
        "Parked: its code has changed (step 'score' was renamed to 'rank').",
    ),
    "admission": (
        gated("limit 'crawl'", ahead=2),
        "Not begun: the limit crawl has 1 of 1 places taken; 2 ahead of it.",
    ),
    "throttle": (
        gated(
            "throttle '' of pipeline 'quote' of tenant 'initech'", period_s=3600.0, next_at=after(minutes=13), ahead=1
        ),
        "Not begun: the throttle of pipeline quote of tenant initech lets 1 begin in 1 h; the next may at 10:13 (in 13 min); 1 ahead of it.",
    ),
    "debounce": (
        gated(
            "debounce 'k9' of pipeline 'quote' of tenant 'acme'",
            most=None,
            wait_s=300.0,
            not_before=after(minutes=4, seconds=44),
        ),
        "Not begun: the debounce k9 of pipeline quote of tenant acme waits for a newer input, and lets it begin at 10:04 (in 4 min 44 s).",
    ),
    "start time": (
        gated("start time", most=None, wait_s=300.0, not_before=after(minutes=4)),
        "Not begun: it waits for its time, 10:04 (in 4 min).",
    ),
    "person": (
        PERSON,
        "Waits at approve for a person: “Refund order A-7?” Closes 4 Dec 09:00 (in 5 d 23 h).",
    ),
    "child waits": (
        RunFacts(run=run("case"), fleet=CALM, child=("run_fed0e6", explain(PERSON))),
        "Waits for its child run fed0e6: waits at approve for a person: “Refund order A-7?” Closes 4 Dec 09:00 (in 5 d 23 h).",
    ),
    "limit": (
        live(more={"limits": {"crm": HOLDERS}}, status="ready", waits_for="limit crm", available_at=after(hours=1)),
        "Waits at pay for limit crm: 2 of 2 places are taken by 444e13, 063cb7; 1st in line.",
    ),
    "rate limit": (
        live(step="judge", status="ready", waits_for="rate openai:slow-1", available_at=after(minutes=6)),
        "Waits at judge until 10:06 (in 6 min): the rate limit of openai:slow-1 is used up.",
    ),
    "breaker": (
        live(
            step="answer",
            number=4,
            max_attempts=7,
            status="ready",
            waits_for="breaker openai:down-1",
            available_at=after(minutes=4, seconds=59),
            fault_before=fault("ModelHTTPError", "…", status=503, answer="the server is overloaded"),
        ),
        "Waits at answer, attempt 4 of 7 until 10:04 (in 4 min 59 s): openai:down-1 fails, so its breaker is open; the last call gave 503 the server is overloaded.",
    ),
    "backoff": (
        live(
            step="upload",
            number=3,
            max_attempts=6,
            status="ready",
            available_at=after(minutes=28),
            fault_before=fault("ConnectionError", "ftp.example: connection refused", file="desk.py", line=164),
        ),
        "Waits until 10:28 (in 28 min) to try upload, attempt 3 of 6 again, after ConnectionError: ftp.example: connection refused in desk.py:164.",
    ),
    "a wait without a worker": (
        live(
            step="ask",
            number=3,
            max_attempts=1,
            status="ready",
            available_at=after(seconds=30),
            fault_before=fault("AttemptWaits", "the agent sleeps for 30 s", code="WAITING"),
        ),
        "Waits until 10:00:30 (in 30 s) to go on with ask: the agent sleeps for 30 s.",
    ),
    "backoff after a provider": (
        live(
            step="answer", number=3, max_attempts=5, status="ready", available_at=after(minutes=43), fault_before=BUSY
        ),
        "Waits until 10:43 (in 43 min) to try answer, attempt 3 of 5 again, after 429 rate limit reached for busy-1.",
    ),
    "delayed": (
        live(status="ready", available_at=after(minutes=4)),
        "Waits until 10:04 (in 4 min) to begin pay.",
    ),
    "sleep": (
        live(step="nap", waits_for="sleep", status="ready", available_at=after(minutes=4)),
        "Sleeps at nap until 10:04 (in 4 min).",
    ),
    "lane": (
        live(status="ready", available_at=None),
        "Waits at pay for a lane of its fan-out.",
    ),
    "no worker": (
        live(step="embed", queue="gpu"),
        "Waits at embed: no worker consumes queue gpu.",
    ),
    "no worker after one died": (
        live(step="render", queue="doomed", losses=1, loss={"worker": "worker-12292"}),
        "Waits at render: no worker consumes queue doomed; its last one, worker-12292, died.",
    ),
    "no worker with the keys": (
        live(FleetFacts(workers=2, lacking={"q": ("signing_keys.b", "value_keys.a")})),
        "Waits at pay: the workers of queue q take no work, because they lack signing_keys.b, value_keys.a.",
    ),
    "no worker with a key that can be read": (
        live(FleetFacts(workers=1, lacking={"q": ()})),
        "Waits at pay: the workers of queue q take no work, because they lack a key.",
    ),
    "another worker with the keys": (
        live(FleetFacts(workers=2, queues={"q": QueueFacts(2, 2)}, lacking={"q": ("value_keys.a",)})),
        "Waits at pay for a slot: queue q, 2 of 2 slots busy.",
    ),
    "no workers": (
        live(ASLEEP),
        "Waits at pay: no worker is alive.",
    ),
    "queued": (
        live(
            FleetFacts(workers=1, queues={"single": QueueFacts(1, 1)}, ahead={"run_desk::count:1": 7}),
            step="count",
            queue="single",
        ),
        "Waits at count for a slot: about 7 ahead of it in queue single, 1 of 1 slot busy.",
    ),
    "lost": (
        live(**{**WORKS, "has_lease": False}),
        "Its worker w1 is gone while at pay; another takes over when the lease is over.",
    ),
    "running": (
        live(**{**WORKS, "started_at": before(minutes=46)}, step="crawl", losses=1, loss={"worker": None}),
        "Runs crawl on w1 since 09:14 (46 min ago), after a worker gave it up once.",
    ),
    "running after a loss": (
        live(**WORKS, step="render", losses=1, loss={"worker": "w0", "how": "exit code 9"}),
        "Runs render on w1 since 09:51 (9 min ago), after it lost its worker once.",
    ),
    "quarantine": (
        live(**WORKS, step="resize", room="apart", losses=2),
        "Runs resize on w1 since 09:51 (9 min ago), in quarantine (apart), because it lost its process twice.",
    ),
    "fan-out": (
        live(
            **WORKS,
            address="pages#23",
            more={"fan_out": FanOutFacts(step="pages", total=60, done=22, failed=0, under_way=6)},
        ),
        "Works through pages: 22 of 60 done, 6 under way, 32 to come.",
    ),
    "cancelling": (
        RunFacts(run=run(cancel_requested_at=NOW, canceller="mona"), fleet=CALM, live=(attempt(**WORKS),)),
        "Is being cancelled by mona while at pay.",
    ),
    "between steps": (RunFacts(run=run(), fleet=CALM), "Between two steps."),
    "between steps without a worker": (RunFacts(run=run(), fleet=ASLEEP), "Between two steps: no worker is alive."),
    "between steps without a coordinator": (
        RunFacts(run=run(), fleet=FleetFacts(workers=1, queues={"q": QueueFacts(4)})),
        "Between two steps: no worker consumes queue flujo.control.",
    ),
    "between steps of a site with its own queue": (
        RunFacts(run=run(), fleet=replace(CALM, control_queue="shop.control")),
        "Between two steps: no worker consumes queue shop.control.",
    ),
    "done": (ended("succeeded", created_at=before(seconds=64)), "Done in 1 min 4 s."),
    "done by a fallback": (
        ended("succeeded", created_at=before(seconds=22.2), fell_back="search"),
        "Done in 22.2 s by the fallback of search.",
    ),
    "done after a repair": (
        ended("succeeded", created_at=before(seconds=28.4), is_repaired=True),
        "Done in 28.4 s, with a repaired answer.",
    ),
}


def test_the_hint_how_to_send_an_event_names_the_run():
    waits = live(step="pay", kind="resume", status="paused", available_at=None, question={"event": "all paid"})
    assert explain(waits).fix == "Send it: `flujo send run_desk 'all paid' VALUE`."


@pytest.mark.parametrize(
    ("schema", "value"),
    [({"type": "string"}, "VALUE"), ({"type": "object"}, "--input-json JSON"), ("damaged", "VALUE")],
)
def test_the_hint_how_to_send_an_event_names_how_to_write_its_value(schema, value):
    question = {"event": "paid", "schema": schema}
    waits = live(step="pay", kind="resume", status="paused", available_at=None, question=question)
    assert explain(waits).fix == f"Send it: `flujo send run_desk paid {value}`."


@pytest.mark.parametrize("question", [QUESTION, {"event": "paid"}])
def test_a_wait_that_is_over_needs_a_worker(question):
    row = {"step": "pay", "kind": "resume", "status": "paused", "question": question, "available_at": before(seconds=3)}
    assert explain(live(ASLEEP, **row)).text == "Its time to wait is over at pay: no worker is alive."
    assert explain(live(**row)).cause in ("person", "event")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_has_its_sentence(cause):
    facts, text = CAUSES[cause]
    assert explain(facts).text == text


def sentences():
    return {cause: explain(facts) for cause, (facts, _) in CAUSES.items()}


def test_a_sentence_ends_and_names_nothing_unknown():
    for cause, seen in sentences().items():
        assert seen.text[-1] in ".”?", cause
        for text in (seen.text, seen.shared, seen.fix):
            assert "None" not in text, cause
            assert "  " not in text, cause
            assert " ." not in text, cause
            assert " ," not in text, cause


def test_what_is_shared_holds_for_each_run_with_the_same_key():
    """Runs that differ in their item, their worker, their times and their figures are one line."""
    for one, other in (
        ({"address": "classify#4", "siblings": 40}, {"address": "classify#12", "siblings": 7}),
        ({"worker": "w1", "latency_s": 0.2}, {"worker": "w2", "latency_s": 0.3}),
    ):
        for error in (FLOAT, fault("TimeoutError", "", file="own_timeout.py", line=4), BUSY):
            pair = [explain(failed("label", error, around="map", **each)) for each in (one, other)]
            assert len({(each.key, each.shared) for each in pair}) == 1
    for status in ({"waits_for": "rate m", "number": 2}, {"number": 2}, {}):
        waits = [explain(live(status="ready", available_at=after(seconds=each), **status)) for each in (61, 3600)]
        assert len({(each.key, each.shared) for each in waits}) == 1
    assert len({each.key for each in sentences().values()}) > 0.8 * len(CAUSES)


def test_numbers_in_messages_are_in_no_key():
    one, other = (fault(message=f"order {number} is unknown", file="desk.py", line=7) for number in (17, 18))
    assert explain(failed("total", one)).key == explain(failed("total", other)).key


def test_a_person_is_told_what_to_do_where_something_can_be_done():
    found = sentences()
    stuck = [each for each in found.values() if each.tone == "stuck"]
    assert stuck
    assert all(each.fix for each in stuck)
    assert found["own timeout"].fix == ""
    limited = replace(CAUSES["own timeout"][0].failed, timeout_s=50.0)
    assert explain(replace(CAUSES["own timeout"][0], failed=limited)).fix == (
        "The step's own limit, 50 s, was not reached."
    )
    once = failed("price", fault("NonRetryableError", "no price", "NON_RETRYABLE", retryable=False), max_attempts=3)
    assert explain(once).fix == "It was not retried: its code says that another attempt cannot help."
    assert explain(replace(once, failed=replace(once.failed, max_attempts=1))).fix == ""


@pytest.mark.parametrize("code", ["AGENT_IO_VALIDATION", "VALIDATION", "PLUGIN", "USAGE_LIMIT_EXCEEDED", ""])
def test_an_error_of_an_older_row_is_quoted(code):
    """Its details are not there, and nothing is guessed from its message."""
    for type_name in ("TimeoutError", "ValidationError"):
        seen = explain(failed("pay", fault(type_name, "no answer within 50 s", code)))
        assert (seen.cause, seen.text) == ("error", f"Failed at pay: {type_name}: no answer within 50 s.")


def test_an_older_row_has_a_sentence_without_what_it_lacks():
    for code, text in (
        ("STEP_TIMEOUT", "Failed at pay: no answer in time."),
        ("QUESTION_EXPIRED", "Failed at pay: nobody answered its question in time."),
        ("ATTEMPT_LOST", "Failed at pay: its process died once."),
    ):
        assert explain(failed("pay", fault("Error", "…", code))).text == text
    unknown = RunFacts(run=run(status="failed", fault=fault("KeyError", "'x'")), fleet=CALM)
    assert explain(unknown).text == "Failed: KeyError: 'x'."
    assert explain(ended("failed", reason="the disk is full")).text == "Failed: the disk is full."
    assert explain(ended("parked", reason="its code is new")).text == "Parked: its code is new."
    assert explain(ended("expired")).text == "Ran out of time."
    assert explain(ended("cancelled")).text == "Cancelled by someone who gave no name."
    assert explain(live(status="paused", kind="resume")).text.startswith("Waits at pay for a person. Closes ")


def test_texts_of_users_are_one_line():
    assert (
        explain(failed("pay", fault("E", "one\n  two", file="a.py", line=1))).text
        == "Failed at pay: E: one two in a.py:1."
    )
    long = explain(failed("pay", fault("E", "two " * 1000))).text
    assert len(long) < 300
    assert long.endswith("…")
    assert explain(ended("cancelled", canceller="mona\n\x1b[31m", cancel_note="a\n\nb")).text == (
        "Cancelled by mona: “a”."
    )


def test_the_most_urgent_attempt_is_told():
    """A person before work, work before a wait, and work that a dead worker holds last."""
    person, works = attempt("ask", status="paused", kind="resume", address="a"), attempt("run", address="b", **WORKS)
    waits, lost = attempt("wait", address="c"), attempt("gone", address="d", **{**WORKS, "has_lease": False})
    rows = [lost, waits, works, person]
    causes = []
    while rows:
        causes.append(explain(RunFacts(run=run(), fleet=CALM, live=tuple(rows))).cause)
        rows.pop()
    assert causes == ["person", "running", "queued", "lost"]


def test_a_worker_that_has_not_reported_its_queues_may_consume_any():
    new = FleetFacts(workers=1, unreported=1)
    assert explain(live(new, queue="gpu")).cause == "queued"
