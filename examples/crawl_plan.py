"""Agents that call an agent: four look at a site side by side, and a main agent hands what they found to a plan generator, as a tool.

    flujo run examples.crawl_plan:pipeline

It runs offline. The site is what `python -m pydoc -w` writes of installed modules; the models are scripted (`examples/_crawl_models.py`):
they read those pages, and no others. With models of a provider nothing but their names changes.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from examples import _crawl_models as models
from flujo_client import Pipeline, Step
from flujo_worker.agents import AgentTool, PlanGeneratorAgent, make_agent_async

CONTRACTS = Path(__file__).parent / "contracts" / "plan_generator_agent"
MODULES = [
    "email",
    "email.charset",
    "email.encoders",
    "email.errors",
    "email.feedparser",
    "email.generator",
    "email.header",
    "email.message",
    "email.mime",
    "email.parser",
    "email.policy",
    "email.utils",
]
SITES = Path(tempfile.gettempdir())


class Finding(BaseModel):
    """What an agent found out."""

    description: str
    output: dict[str, Any]


def write_site(_: str) -> dict[str, str]:
    """Write a page for each module, and say where to begin."""
    site = Path(tempfile.mkdtemp(prefix="crawl-", dir=SITES))
    pydoc = [sys.executable, "-m", "pydoc", "-w", *MODULES]
    subprocess.run(pydoc, cwd=site, check=True, capture_output=True, timeout=60)  # noqa: S603 - a list of our own
    return {"target_url": f"{site.name}/{MODULES[0]}.html"}


def read_page(url: str) -> str:
    """Read a page of a site.

    Args:
        url: as in `crawl-x1/email.html`.
    """
    if not re.fullmatch(r"crawl-\w+/[\w.]+\.html", url):
        return "400: not a page of a site"
    page = SITES / url
    return page.read_text(encoding="utf-8") if page.is_file() else "404: no such page"


def look(name: str, model: Any, task: str) -> Step:
    agent = make_agent_async(model, task, Finding, name=name, tools=[read_page])
    return Step(name, agent)


def collect(found: dict[str, Finding]) -> dict[str, Any]:
    """Put the findings together as the plan generator's contract wants them."""
    items = [{"agent_name": name, **finding.model_dump()} for name, finding in found.items()]
    return {"target_url": found["discovery_agent"].output["start_url"], "collected_information": items}


plan_generator = PlanGeneratorAgent(
    models.plan_generator, "Write a crawl plan from what was collected.", name="plan_generator_agent"
)

run_plan_generator = AgentTool(
    plan_generator,
    description="Writes a crawl plan from what the other agents have found out.",
    input_schema=PlanGeneratorAgent.input_schema,
    output_schema=CONTRACTS / "output.schema.json",
)

main = make_agent_async(
    models.main,
    "Have a crawl plan generated from what was collected, and answer with it.",
    name="main_agent",
    tools=[run_plan_generator],
)


def hand_over(plan: str) -> dict[str, Any]:
    """Give the plan; its site is not needed any more."""
    read: dict[str, Any] = json.loads(plan)
    shutil.rmtree(SITES / Path(read["start_url"]).parent.name, ignore_errors=True)
    return read


pipeline = Pipeline(
    [
        Step("site", write_site),
        Step.parallel(
            "look",
            {
                "discovery_agent": look(
                    "discovery_agent", models.discovery, "Find the site's articles and its pagination."
                ),
                "selector_agent": look("selector_agent", models.selector, "Find selectors that hold on every page."),
                "accessibility_agent": look(
                    "accessibility_agent", models.accessibility, "Say what a crawler has to heed."
                ),
                "data_prep_agent": look("data_prep_agent", models.data_prep, "Take samples of the articles."),
            },
        ),
        Step("collect", collect),
        Step("main", main),
        Step("hand_over", hand_over),
    ],
    name="crawl-plan",
)
