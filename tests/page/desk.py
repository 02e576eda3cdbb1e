"""The pipelines of a support desk, each of which comes to another kind of stop; what the workers import."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from stops import HTML, IMG

from flujo_client import (
    Backoff,
    HumanInTheLoopStep,
    ImportStep,
    Limit,
    Pipeline,
    PipelineContext,
    PluginOutcome,
    Step,
    StepConfig,
    WaitForEvent,
    validator,
)
from flujo_client.errors import NonRetryableError, PipelineAbortSignal
from flujo_worker import make_agent_async

ONCE = StepConfig(max_retries=0)
TWICE = StepConfig(max_retries=1)
LONG = StepConfig(max_retries=0, timeout_s=4000)


class Letter(BaseModel):
    text: str
    cost_usd: float = 0.004
    token_counts: int = 420


def fetch(ticket: Any) -> str:
    return f"ticket {ticket}: the invoice charges the same order twice"


def write(value: Any) -> Letter:
    return Letter(text=f"about {getattr(value, 'text', value)}")


def send(_: Any) -> str:
    return "sent"


async def work(_: Any) -> str:
    await asyncio.sleep(3000)
    return "done"


def desk(name: str, *steps: Any, **options: Any) -> Pipeline[Any, Any]:
    """Put the steps between the two that always succeed."""
    return Pipeline([Step("fetch", fetch), *steps, Step("send", send)], name=name, **options)


# errors


def total(order: Any) -> float:
    lines = {"A-7": ["12.50", "n/a"]}
    print("adding up", order)
    return sum(float(each) for each in lines["A-7"])


def label(mail: int) -> dict[str, Any]:
    if mail % 17 == 3:
        raise KeyError("language")
    return {"mail": mail, "topic": "billing"}


async def empty(_: Any) -> str:
    raise ValueError("primary index is empty")


async def give_up(_: Any) -> None:
    async with asyncio.timeout(0.2):
        await asyncio.sleep(5)


async def ask_crm(_: Any) -> None:
    await asyncio.sleep(60)


def charge(_: Any) -> None:
    import stripe_sdk  # noqa: F401


def price(_: Any) -> None:
    raise NonRetryableError("no price for sting")


def withdraw(_: Any) -> None:
    raise PipelineAbortSignal("the customer withdrew the complaint")


class Mails(PipelineContext):
    mails: list[int] = Field(default_factory=lambda: list(range(40)))


mailbox = desk(
    "mailbox",
    Step.map_over("classify", Pipeline([Step("label", label, config=ONCE)]), iterable_input="mails", max_concurrency=8),
    context_model=Mails,
)
invoice = desk("invoice", Step("total", total, config=TWICE))
order = desk("order", ImportStep("invoice", pipeline=invoice, own_run=True))
refine = desk(
    "refine",
    Step.loop_until(
        "improve",
        Pipeline([Step("draft", write), Step("score", empty, config=ONCE)]),
        exit_condition_callable=lambda _output, _context: False,
        max_loops=4,
    ),
)
crm = desk("crm", Step("ask_crm", ask_crm, config=StepConfig(timeout_s=0.4, max_retries=1)))
drafts = Step.parallel(
    "drafts",
    {
        "legal": Pipeline([Step("check", ask_crm, config=StepConfig(timeout_s=0.4, max_retries=0))]),
        "tone": Pipeline([Step("tune", send)]),
    },
)
review = desk("review", drafts)
own_timeout = desk("own-timeout", Step("call", give_up, config=StepConfig(max_retries=0, timeout_s=50)))
payment = desk("payment", Step("charge", charge, config=ONCE))
quote = desk("quote", Step("price", price, config=StepConfig(max_retries=5)))
complaint = desk("complaint", Step("check", withdraw))
dispatch = desk("dispatch", Step.branch_on("route", lambda _value, _context: "fax", {"mail": Step("by_mail", send)}))

# what its process does not survive


def crash(_: Any) -> None:
    os._exit(9)


def shaky(_: Any) -> None:
    died = Path(os.environ["ACCEPTANCE_FOLDER"]) / "died"
    times = died.stat().st_size if died.exists() else 0
    with died.open("a") as file:
        file.write("x")
    if times < 2:
        os._exit(1)
    time.sleep(3000)


thumbnails = desk("thumbnails", Step("thumbnail", crash, queue="poison"))
resize = desk("resize", Step("resize", shaky, queue="shaky", config=LONG))
pdf = desk("pdf", Step("render", work, queue="doomed", config=LONG))
video = desk("video", Step("encode", work, queue="revived", config=LONG))

# models


class Judgement(BaseModel):
    sentiment: str
    score: int = Field(ge=0, le=10)
    tags: list[str] = []


def ask(model: str, output: Any = str, config: StepConfig = ONCE, **options: Any) -> Step:
    agent = make_agent_async(f"openai:{model}", "Judge the ticket.", output_type=output)
    return Step("judge", agent, config=config, **options)


STRICT = {"aop": "full"}
LENIENT = {"aop": "full", "coercion": {"tolerant_level": 1, "allow": {"integer": ["str->int"]}}}
later = StepConfig(max_retries=4, backoff=Backoff(base_s=1800, cap_s=3600, jitter=0))
soon = StepConfig(max_retries=6, backoff=Backoff(base_s=0.05, cap_s=0.1, jitter=0))
translate = desk("translate", ask("busy-1"))
retranslate = desk("retranslate", ask("busy-2", config=later))
reply = desk("reply", ask("down-1", config=soon))
sentiment = desk("sentiment", ask("slow-1"))
judge = desk("judge", ask("odd-1", Judgement, TWICE, processing=STRICT))
tidy = desk("tidy", ask("untidy-1", Judgement, processing=LENIENT))

# outputs that are rejected


@validator
def polite(_: Any) -> tuple[bool, str]:
    return False, "the letter does not greet the customer"


class Tariff:
    def validate(self, _: Any) -> PluginOutcome:
        return PluginOutcome(success=False, feedback="no tariff for AQ")


letter = desk("letter", Step("write", write, validators=[polite]))
shipping = desk("shipping", Step("price", write, plugins=[Tariff()]))

# budgets and limits


def dear(_: Any) -> Letter:
    return Letter(text="a long draft", cost_usd=0.08, token_counts=9000)


article = Pipeline(
    [
        Step("outline", write),
        Step("draft", dear, config=StepConfig(expected_cost_usd=0.02, expected_tokens=800)),
        Step("polish", write),
    ],
    name="article",
)
newsletter = Pipeline(
    [
        Step("outline", write, config=StepConfig(expected_cost_usd=0.01)),
        Step("draft", dear, config=StepConfig(expected_cost_usd=0.07, expected_tokens=800)),
    ],
    name="newsletter",
)
sync = desk("crm-sync", Step("store", work, limit=Limit("crm", 2), config=LONG))
sync_now = desk("crm-sync-now", Step("store", work, limit=Limit("crm", 2, on_full="drop"), config=LONG))
crawl = desk("crawl", Step("crawl", work, config=LONG))
report = desk("report", Step("count", work, queue="single", config=LONG))
embed = desk("embed", Step("embed", write, queue="gpu"))


def upload(_: Any) -> None:
    raise ConnectionError("ftp.example: connection refused")


backup = desk("backup", Step("upload", upload, config=later))

# people


class Verdict(BaseModel):
    approved: bool
    refund_eur: float = Field(0, ge=0, le=500, description="how much to give back")
    reason: str = Field("", max_length=200)
    channel: str = Field("mail", json_schema_extra={"enum": ["mail", "phone", "letter"]})


QUESTION = "Refund order A-7?\n\nThe customer was charged twice: 12.50 EUR on 3 November and 12.50 EUR on 4 November."
DAY_S = 86_400
refund = desk("refund", HumanInTheLoopStep("approve", QUESTION, input_schema=Verdict, expires_s=6 * DAY_S))
refund_fast = desk("refund-fast", HumanInTheLoopStep("approve", QUESTION, input_schema=Verdict, expires_s=0.5))
settlement = desk("settlement", WaitForEvent("pay", event="paid", timeout_s=6 * DAY_S))
case = desk("case", ImportStep("refund", pipeline=refund, own_run=True))

# what goes well, or goes on


class Site(PipelineContext):
    pages: list[int] = Field(default_factory=lambda: list(range(60)))


async def page(number: int) -> str:
    await asyncio.sleep(0 if number < 22 else 3000)
    return "page"


site = desk(
    "site",
    Step.map_over("pages", Pipeline([Step("page", page, config=LONG)]), iterable_input="pages", max_concurrency=6),
    context_model=Site,
)
greeting = desk("greeting", Step("greet", write))
search = desk("search", Step("search", empty, config=ONCE, fallback_step=Step("archive", write)))

# text that would be HTML


def evil(value: Any) -> None:
    print(HTML)
    raise ValueError(HTML + str(value))


def say_html(_: Any) -> dict[str, str]:
    return {HTML: HTML}


evil_error = Pipeline([Step(IMG, evil, config=ONCE)], name=f"evil {HTML}")
evil_output = Pipeline(
    [Step("answer", make_agent_async("openai:evil-1", HTML), config=ONCE), Step("say", say_html)], name="evil-output"
)
evil_question = Pipeline(
    [
        HumanInTheLoopStep(
            "ask",
            HTML,
            input_schema={
                "type": "object",
                "properties": {f'x">{HTML}': {"type": "string", "description": HTML, "enum": [HTML]}},
            },
        )
    ],
    name="evil-question",
)
