"""The models of `examples/crawl_plan.py`, scripted: they see only what a model of a provider would see, and answer from that.

Each reads pages by the tool that its agent offers, and parses what it was given. Nothing here knows the site beforehand.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from itertools import takewhile
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

Pages = Mapping[str, "Page"]
SAMPLES = 3


class Page(HTMLParser):
    """What there is on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.selectors: Counter[str] = Counter()
        self.texts: dict[str, list[str]] = {}
        self.lang: str | None = None
        self.scripts = self.images_without_alt = 0
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        self.lang = given.get("lang") if tag == "html" else self.lang
        self.scripts += tag == "script"
        self.images_without_alt += tag == "img" and not given.get("alt")
        name = ".".join([tag, *(given.get("class") or "").split()])
        self.selectors[name] += 1
        self._open.append(name)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().partition(".")[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and (text := " ".join(data.split())):
            self.texts.setdefault(self._open[-1], []).append(text)

    def first(self, selector: str) -> str:
        return " ".join(self.texts.get(selector, ())[:1])


def discovery() -> FunctionModel:
    """Find the pages of the site that the first one links to and that exist."""

    def wanted(start: str, pages: Mapping[str, str]) -> list[str]:
        return [start, *_linked(start, pages)]

    def found(start: str, pages: Pages) -> dict[str, Any]:
        articles = [url for url in pages if url != start]
        dead = len(set(_internal(start, pages[start]))) - len(articles)
        numbered = [link for link in pages[start].links if re.search(r"page[=/-]?\d+", link)]
        return {
            "description": f"Found {len(articles)} articles on one listing page; {dead} of its links lead nowhere",
            "output": {
                "start_url": start,
                "pagination_type": "numbered" if numbered else "none",
                "max_pages": 1 + len(numbered),
                "article_urls": sorted(articles),
                "dead_links": dead,
            },
        }

    return _reader(wanted, found)


def selector() -> FunctionModel:
    """Find elements that every page has once, and those that hold most of a page's text."""

    def found(_: str, pages: Pages) -> dict[str, Any]:
        shared = [
            name
            for name in next(iter(pages.values())).selectors
            if all(name in page.selectors for page in pages.values())
        ]
        titles = [name for name in shared if all(_names_the_page(page.first(name), url) for url, page in pages.items())]
        bodies = sorted(
            shared, key=lambda name: -sum(len(text) for page in pages.values() for text in page.texts.get(name, ()))
        )
        return {
            "description": f"Selector Agent tried {len(pages)} pages: {len(shared)} selectors hold on all of them",
            "output": {"selectors": {"title": titles[0], "text": bodies[0]}, "tried_on": sorted(pages)},
        }

    return _reader(_a_few, found)


def accessibility() -> FunctionModel:
    """Says whether pages have to be rendered first, and what they lack."""

    def found(_: str, pages: Pages) -> dict[str, Any]:
        scripts = sum(page.scripts for page in pages.values())
        return {
            "description": "Pages can be read as they are" if not scripts else "Pages have to be rendered first",
            "output": {
                "requires_javascript": scripts > 0,
                "languages": sorted({page.lang or "unknown" for page in pages.values()}),
                "images_without_alt": sum(page.images_without_alt for page in pages.values()),
            },
        }

    return _reader(_a_few, found)


def data_prep() -> FunctionModel:
    """Take samples: what a page says first under each of its headings."""

    def found(start: str, pages: Pages) -> dict[str, Any]:
        samples = [
            {"url": url, "headings": page.texts.get("strong.bigsection", []), "links": len(page.links)}
            for url, page in sorted(pages.items())
            if url != start
        ]
        return {"description": f"Took {len(samples)} articles as samples", "output": {"samples": samples}}

    return _reader(_a_few, found)


def main() -> FunctionModel:
    """Has the plan made. It forgets what the tool needs, reads the refusal, and calls again with what that asks for (M-309)."""

    def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        task = {"task": "Generate comprehensive crawl plan"}
        told = [part.content for part in _parts(messages) if part.part_kind == "tool-return"]
        if not told:
            return ModelResponse([ToolCallPart("run_plan_generator_agent", task)])
        if told[-1]["success"]:
            return ModelResponse([TextPart(json.dumps(told[-1]["output"]))])
        if len(told) > 1:
            return ModelResponse([TextPart(told[-1]["hint"])])
        known = _input(messages)
        given = {name: known[name] for name in told[-1]["missing_fields"] if name in known}
        return ModelResponse([ToolCallPart("run_plan_generator_agent", {**task, **given})])

    return FunctionModel(respond, model_name="scripted")


def plan_generator() -> FunctionModel:
    """Make a plan of the Markdown that it is prompted with: sections by agent, and lists in them."""

    def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        prompt = _asked(messages)
        head, *sections = re.split(r"^## From (?=\w+$)", prompt, flags=re.MULTILINE)
        known = {each.partition("\n")[0]: each.partition("### Output\n")[2].splitlines() for each in sections}
        plan = {
            "name": _after("Task name: ", head),
            "start_url": _after("# Collected Information for ", head),
            "urls": _under("article_urls", known["discovery_agent"]),
            "selectors": dict(_pair(line) for line in _under("selectors", known["selector_agent"])),
            "needs_browser": "- **requires_javascript**: true" in known.get("accessibility_agent", ()),
        }
        return ModelResponse([TextPart(json.dumps(plan))])

    return FunctionModel(respond, model_name="scripted")


def _reader(
    wanted: Callable[[str, Mapping[str, str]], list[str]], found: Callable[[str, Pages], dict[str, Any]]
) -> FunctionModel:
    """Make a model that reads the pages it wants, and then says what it found."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        start, read = _input(messages)["target_url"], _read(messages)
        unread = [url for url in wanted(start, read) if url not in read]
        if unread:
            return ModelResponse([ToolCallPart("read_page", {"url": url}) for url in unread])
        pages = {url: Page(html) for url, html in read.items() if _is_html(html)}
        return ModelResponse([ToolCallPart(info.output_tools[0].name, found(start, pages))])

    return FunctionModel(respond, model_name="scripted")


def _a_few(start: str, pages: Mapping[str, str]) -> list[str]:
    """Return the first page, and as many of those it links to as samples are wanted; missing pages are skipped."""
    linked = [url for url in _linked(start, pages) if _is_html(pages.get(url, "<"))]
    return [start, *linked[:SAMPLES]]


def _linked(start: str, pages: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(_internal(start, Page(pages[start])))) if start in pages else []


def _internal(start: str, page: Page) -> list[str]:
    site = start.rpartition("/")[0]
    return [
        f"{site}/{link}" for link in page.links if re.fullmatch(r"[\w.]+\.html", link) and f"{site}/{link}" != start
    ]


def _is_html(text: str) -> bool:
    return text.startswith("<")


def _names_the_page(title: str, url: str) -> bool:
    return bool(title) and title in url


def _parts(messages: list[ModelMessage]) -> list[Any]:
    return [part for message in messages for part in message.parts]


def _asked(messages: list[ModelMessage]) -> str:
    return str(next(part.content for part in _parts(messages) if part.part_kind == "user-prompt"))


def _input(messages: list[ModelMessage]) -> dict[str, Any]:
    """Return the step's input; the reason why an earlier attempt was not accepted may follow it."""
    read: dict[str, Any]
    read, _ = json.JSONDecoder().raw_decode(_asked(messages))
    return read


def _read(messages: list[ModelMessage]) -> dict[str, str]:
    """Return the pages that were read, by URL."""
    urls = {part.tool_call_id: part.args["url"] for part in _parts(messages) if part.part_kind == "tool-call"}
    returns = [part for part in _parts(messages) if part.part_kind == "tool-return"]
    return {urls[part.tool_call_id]: str(part.content) for part in returns}


def _after(start: str, text: str) -> str:
    return next(line.removeprefix(start) for line in text.splitlines() if line.startswith(start))


def _under(key: str, lines: list[str]) -> list[str]:
    """Return the items of the list under a key."""
    at = lines.index(f"- **{key}**:") + 1
    return [line.removeprefix("  - ") for line in takewhile(lambda line: line.startswith("  "), lines[at:])]


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition("**: ")
    return key.removeprefix("**"), value
