"""Runs of the engine in memory that stop in many ways: each sentence names place, cause and what moves it, by what is stored."""

import asyncio
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import (
    HumanInTheLoopStep,
    ImportStep,
    Pipeline,
    PipelineContext,
    PluginOutcome,
    Step,
    StepConfig,
    UsageLimits,
    WaitForEvent,
)
from flujo_client.errors import NonRetryableError, PipelineAbortSignal
from flujo_client.explain.facts import AttemptFacts, FleetFacts, RunFacts, RunRowFacts
from flujo_client.explain.waiting import explain
from flujo_client.pipeline.compile import compile_plan
from flujo_worker import make_agent_async

ONCE, TWICE = StepConfig(max_retries=0), StepConfig(max_retries=1, backoff={"base_s": 0})
HURRIED, PATIENT = StepConfig(max_retries=0, timeout_s=0.05), StepConfig(max_retries=0, timeout_s=50)
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


class Letter(BaseModel):
    text: str = "x"
    cost_usd: float = 0.084
    token_counts: int = 800


class Score(BaseModel):
    score: int = Field(le=10)


class Mails(PipelineContext):
    mails: list[int] = Field(default_factory=lambda: [1, 2, 3])


class Tariff:
    def validate(self, output, **_):
        return PluginOutcome(success=False, feedback="no tariff for AQ")


def polite(output):
    return False, "it does not greet"


def write(value):
    return f"about {value}"


def number(text):
    return float(text)


def label(mail):
    if mail == 3:
        raise KeyError("language")


async def waits(data):
    await asyncio.sleep(60)  # waits


async def gives_up(data):
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)


def charge(data):
    import stripe_sdk  # noqa: F401 - it is not there


def price(data):
    raise NonRetryableError("no price for sting")


def withdraw(data):
    raise PipelineAbortSignal("the customer withdrew the complaint")


def draft(data):
    return Letter()


def asks(text):
    model = FunctionModel(lambda *_: ModelResponse([TextPart(text)]), model_name="odd-1")
    return Step("judge", make_agent_async(model, output_type=Score), config=ONCE, processing={"aop": "full"})


invoice = Pipeline([Step("total", number, config=TWICE)], name="invoice")
classify = Step.map_over("classify", Pipeline([Step("label", label, config=ONCE)]), iterable_input="mails")
legal = Pipeline([Step("check", waits, config=HURRIED)])
refine = Step.loop_until(
    "refine", Pipeline([Step("score", number, config=ONCE)]), exit_condition_callable=lambda *_: False, max_loops=3
)
branch = Step.branch_on("route", lambda *_: "fax", {"mail": Step("by_mail", write)})
FLOAT = "ValueError: could not convert string to float: 'n/a' in <return float>"
STOPS = {
    "error": (invoice, f"Failed at total, attempt 2 of 2: {FLOAT}.", ":total:2"),
    "error in an item": (
        Pipeline([Step("fetch", write), classify], name="mailbox", context_model=Mails),
        "Failed at label, item 3 of 3 of classify: KeyError: 'language' in <raise KeyError>.",
        "classify#3:label:1",
    ),
    "error in an iteration": (refine, f"Failed at score, iteration 1 of refine: {FLOAT}.", "refine#1:score:1"),
    "error of a child run": (
        ImportStep("invoice", pipeline=invoice, own_run=True),
        f"Failed in its child run CHILD: failed at total, attempt 2 of 2: {FLOAT}.",
        None,
    ),
    "error not retried": (
        Step("price", price, config=TWICE),
        "Failed at price: NonRetryableError: no price for sting in <raise NonRetryableError>.",
        ":price:1",
    ),
    "no event": (
        WaitForEvent("pay", event="paid", timeout_s=60),
        "Failed at pay: step 'pay' got no event 'paid' within 60 s.",
        ":pay:resume",
    ),
    "timeout in a branch": (
        Step.parallel("drafts", {"legal": legal, "tone": Step("tune", write)}),
        "Failed at check, in drafts/legal: no answer within 50 ms, while at <sleep(60)  # waits>.",
        "drafts/legal:check:1",
    ),
    "own timeout": (
        Step("call", gives_up, config=PATIENT),
        "Failed at call: a TimeoutError of its own code after TOOK in <asyncio.timeout(>.",
        ":call:1",
    ),
    "missing module": (
        Step("charge", charge, config=ONCE),
        "Failed at charge: No module named 'stripe_sdk' on worker local (<import stripe_sdk>).",
        ":charge:1",
    ),
    "refused output": (
        asks('{"score": 42}'),
        "Failed at judge: the answer of function:odd-1 was refused at /score: expected limit 10, found integer 42.",
        ":judge:1",
    ),
    "rejected by a validator": (
        Step("write", write, validators=[polite]),
        "Failed at write: polite rejected the output: “it does not greet”.",
        ":write:1",
    ),
    "rejected by a plugin": (
        Step("write", write, plugins=[Tariff()]),
        "Failed at write: Tariff rejected the output: “no tariff for AQ”.",
        ":write:1",
    ),
    "budget": (
        Step("draft", draft),
        "Stopped after draft: the run's budget of $0.05 is used up ($0.084 spent).",
        ":draft:1",
    ),
    "budget refused": (
        Step("draft", draft, config=StepConfig(expected_cost_usd=0.07, expected_tokens=800)),
        "Did not start draft: it asks for $0.07, and the run's budget of $0.05 has $0 spent and $0 reserved.",
        ":draft:1",
    ),
    "no branch": (
        branch,
        "Failed at route: the condition of 'route' answered 'fax'; its branches are mail, and it has no default.",
        None,
    ),
    "unanswered": (
        HumanInTheLoopStep("approve", "Refund?", expires_s=1.5),
        "Failed at approve: nobody answered its question within 1.5 s.",
        ":approve:resume",
    ),
    "aborted": (
        Step("check", withdraw),
        "Stopped by its own code at check: “the customer withdrew the complaint”.",
        ":check:1",
    ),
    "done by a fallback": (
        Step("search", number, config=ONCE, fallback_step=Step("archive", write)),
        "Done in TOOK.",
        "",
    ),
}
LIMITED = UsageLimits(total_cost_usd_limit=0.05)


def facts_of(engine, run_id, plan):
    """Return the facts of a run as its records hold them."""
    reads = engine.stores.reads
    record, attempts, scopes = reads.read_run(run_id), engine.history(run_id), reads.read_scopes(run_id)
    child = next((each for each in engine.children(run_id) if each.status == "failed"), None)
    failed = next((each for each in attempts if each.key == record.failed_key), None)
    return RunFacts(
        run=RunRowFacts(
            **_common(record, RunRowFacts),
            now=record.created_at,
            fault=record.error,
            root=next(each.address for each in scopes if each.parent is None),
        ),
        fleet=FleetFacts(),
        failed=failed and _placed(run_id, failed, scopes, plan),
        child=child and (child.id, explain(facts_of(engine, child.id, plan))),
    )


def _placed(run_id, attempt, scopes, plan):
    node, container = plan.node(attempt.address, attempt.step), attempt.address.rpartition("#")[0]
    around = next((each.kind for each in scopes if container and each.address == container), None)
    return AttemptFacts(
        **_common(attempt, AttemptFacts),
        run_id=run_id,
        fault=attempt.fault,
        around=around,
        siblings=sum(each.parent == container for each in scopes),
        max_attempts=node.max_attempts,
    )


def _common(record, kind):
    return {name: getattr(record, name) for name in kind.__slots__ if name != "fault" and hasattr(record, name)}


def with_lines(truth):
    """Write `<text>` as this file with the number of the first line that has the text."""

    def line_of(found):
        numbers = [number for number, line in enumerate(LINES, start=1) if found[1] in line]
        return f"test_explained_runs.py:{numbers[0]}" if numbers else found[0]

    return re.sub(r"<(.+?)>", line_of, truth)


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_says_where_it_stopped(engine, stop):
    step, truth, place = STOPS[stop]
    pipeline = step if isinstance(step, Pipeline) else Pipeline([step], name=stop)
    run_id = engine.enqueue(pipeline, "n/a", limits=LIMITED if stop.startswith("budget") else None)
    engine.pass_time()
    facts = facts_of(engine, run_id, compile_plan(pipeline))
    seen = explain(facts)
    text = seen.text.replace(facts.child[0][-6:], "CHILD") if facts.child else seen.text
    assert re.sub(r"\b(after|Done in) [\d.]+ m?s", r"\1 TOOK", text) == with_lines(truth)
    assert place is None or seen.place == (f"{run_id}:{place}" if place else "")
