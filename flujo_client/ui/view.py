"""From data to a page: HTML by templates, or the same data as JSON. What users wrote is data in both."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlencode

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flujo_client.api.client import FlujoClient
from flujo_client.api.explanations import explain_runs
from flujo_client.explain.sentence import Part, Sentence, clock, span
from flujo_client.explain.words import short_id
from flujo_client.gateway.door import SyncRunner
from flujo_client.ui.reading import STATEMENT_S, PageReads, ValueReader
from flujo_client.ui.security import User, form_token, sign
from flujo_client.ui.tree import STATES, tone_of

T = TypeVar("T")

FILES: Final = Path(__file__).parent / "static"
_CONTENT: Final = b"".join(each.read_bytes() for each in sorted(FILES.iterdir()))
STATIC: Final = f"/static/{hashlib.sha256(_CONTENT).hexdigest()[:16]}"
"""The folder of the static files, and the address under which they are sent."""
MANY: Final = 1000
"""Counts are shown up to this number; more are `999+`."""
BADGES_S: Final = 2.0
"""Seconds for which the counts of the menu are kept."""
HIDDEN: Final = "hidden"
"""The text in place of a value that the user may not see."""
_SIZES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Page:
    """What all requests share: the client, the connections that read, and the secret.

    Connections are made with the first request, because servers fork after they have made the application.
    """

    def __init__(self, client: FlujoClient | None, *, secret: str | None, shows_values: bool) -> None:
        self._given, self._secret, self._shows_values = client, secret, shows_values
        self._drawn, self._lock = secrets.token_bytes(32), threading.Lock()
        self._connected: tuple[FlujoClient, SyncRunner] | None = None
        self._kept: dict[str, tuple[float, Any]] = {}

    @property
    def client(self) -> FlujoClient:
        """Return the client, which writes."""
        return self._connect()[0]

    @property
    def reader(self) -> SyncRunner:
        """Return the connections that read."""
        return self._connect()[1]

    def _connect(self) -> tuple[FlujoClient, SyncRunner]:
        with self._lock:
            if self._connected is None:
                client = self._given or FlujoClient()
                self._connected = client, SyncRunner(client.settings, reads_within_s=STATEMENT_S)
            return self._connected

    def close(self) -> None:
        """Close the page's own connections, and the client unless it was given."""
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()
            if self._given is None:
                connected[0].close()

    @property
    def secret(self) -> bytes:
        """Return what signs the forms' tokens and the notes in addresses."""
        secret = self.client.settings.ui.secret
        own = self._secret or (secret and secret.get_secret_value())
        return own.encode() if own else self._drawn

    @property
    def shows_values(self) -> bool:
        """Return whether prompts, inputs and outputs are shown here."""
        return self._shows_values and self.client.settings.ui.values

    def kept(self, name: str, seconds: float, read: Callable[[], T]) -> T:
        """Return a value that was read at most so many seconds ago, or read it."""
        at, value = self._kept.get(name, (float("-inf"), None))
        if time.monotonic() - at > seconds:
            value = read()
            self._kept[name] = (time.monotonic(), value)
        return cast("T", value)


def page_of(request: Request) -> Page:
    return cast("Page", request.app.state.page)


def user_of(request: Request) -> User:
    return cast("User", request.state.user)


def shows_values(request: Request) -> bool:
    """Return whether this user may see prompts, inputs, outputs and questions here."""
    return page_of(request).shows_values and user_of(request).sees_values


def reading(request: Request) -> PageReads:
    if not hasattr(request.state, "reading"):
        request.state.reading = PageReads(page_of(request).reader)
    return cast("PageReads", request.state.reading)


def values_of(request: Request) -> ValueReader:
    return ValueReader(reading(request), shows_values(request), page_of(request).client.settings.log.redact)


def explain(request: Request, run_ids: Collection[str]) -> dict[str, Sentence]:
    """Explain runs, by their ids; for a user who may see no values, without what people and models wrote."""
    found = reading(request).perform(explain_runs(page_of(request).client.settings, run_ids))
    if not shows_values(request):
        for run, each in found.items():
            parts = tuple(part._replace(text=HIDDEN) if part.kind == "quote" else part for part in each.parts)
            found[run] = dataclasses.replace(each, parts=parts)
    return found


def root_of(request: Request) -> str:
    """Return the path under which the page is mounted, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def respond(request: Request, template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
    """Answer with a page, or for `?format=json` with its data: plain data, times, dataclasses and sentences."""
    if request.query_params.get("format") == "json":
        body = orjson.dumps(data, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS)
        answer = Response(body, status, media_type="application/json")
    else:
        shell = {"badges": badges(request), "token": form_token(page_of(request).secret, user_of(request))}
        answer = HTMLResponse(_render(request, template, {**shell, **data}), status)
    read = reading(request)
    answer.headers["server-timing"] = f'db;dur={read.seconds * 1000:.1f};desc="{read.statements} statements"'
    return answer


def respond_error(
    request: Request, status: int, title: str, text: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with an error's page, or as JSON, without reading anything."""
    if request.query_params.get("format") == "json":
        return Response(orjson.dumps({"error": title, "text": text}), status, headers, media_type="application/json")
    shell = {"badges": dict.fromkeys(("live", "failed", "asked"), 0), "token": "", "title": title, "text": text}
    return HTMLResponse(_render(request, "error.html", shell), status, headers)


def go_to(request: Request, path: str, note: str = "") -> Response:
    """Redirect after a form to a page of ours, which shows the note."""
    signed = {"note": note, "signed": sign(page_of(request).secret, "note", note)} if note else {}
    joined = "&" if "?" in path else "?"
    return RedirectResponse(f"{root_of(request)}{path}{joined if signed else ''}{urlencode(signed)}", 303)


def badges(request: Request) -> Mapping[str, int]:
    """Count what is under way, failed and asked, each up to `MANY`."""
    return page_of(request).kept("badges", BADGES_S, lambda: reading(request).rows("badges", most=MANY)[0])


def _render(request: Request, template: str, values: Mapping[str, Any]) -> str:
    note, signed = (request.query_params.get(name, "") for name in ("note", "signed"))
    is_ours = signed and secrets.compare_digest(signed.encode(), sign(page_of(request).secret, "note", note).encode())
    shell = {
        "root": root_of(request),
        "path": request.url.path.removeprefix(root_of(request)),
        "user": getattr(request.state, "user", None),
        "live": getattr(request.state, "live", None),
        "now": datetime.now(UTC),
        "note": note if is_ours else "",
    }
    return TEMPLATES.get_template(template).render({**shell, **values})


def _plain(value: Any) -> Any:
    """Return what JSON does not have as something that it has."""
    if isinstance(value, Sentence):
        return value.to_tree()
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)


@pass_context
def sentence(context: Context, given: Sentence, *, shared: bool = False) -> Markup:
    """Draw a sentence: names in mono, quotes, links to runs; a `shared` one without what is true of one run only."""
    parts = (part for part in given.parts if not (shared and part.kind == "own"))
    return Markup("").join(_part(part, context["root"]) for part in parts)


def _part(part: Part, root: str) -> Markup:
    if part.run:
        return Markup('<a href="{}/runs/{}">{}</a>').format(root, part.run, part.text)
    tag = {"code": "code", "quote": "q"}.get(part.kind)
    return escape(part.text) if tag is None else Markup(f"<{tag}>{{}}</{tag}>").format(part.text)  # noqa: S704 - the tag is ours


def prose(text: str) -> Markup:
    """Draw a text in which commands are between backticks."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(each) if n % 2 else escape(each) for n, each in enumerate(text.split("`")))


def icon(tone: str, label: str = "") -> Markup:
    """Draw the mark of a tone; its shape tells what its colour tells."""
    named = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    return Markup('<svg class="i t-{}" width="14" height="14" {}><use href="#i-{}"/></svg>').format(tone, named, tone)


@pass_context
def ago(context: Context, at: datetime | None) -> Markup:
    """Draw how long ago something was, in one unit; the whole time is its title."""
    if at is None:
        return Markup("")
    seconds = max(0.0, (context["now"] - at).total_seconds())
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return _time(at, f"{int(seconds // size)} {unit}")


@pass_context
def until(context: Context, at: datetime | None) -> Markup:
    """Draw a time as a clock shows it, with its distance."""
    return Markup("") if at is None else _time(at, clock(at, context["now"]))


def _time(at: datetime, text: str) -> Markup:
    shape = Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>')
    return shape.format(at.isoformat(), at.astimezone(UTC), text)


def query_of(filters: Mapping[str, str]) -> str:
    """Write filters as the end of an address, without those that are empty."""
    kept = {name: text for name, text in filters.items() if text}
    return f"?{urlencode(kept)}" if kept else ""


def money(usd: float | None) -> str:
    """Write an amount in dollars; nothing for none."""
    if not usd:
        return ""
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}".rstrip("0")


def short(number: float) -> str:
    """Write a large number, such as one of tokens, in few characters."""
    size, unit = next((each for each in _SIZES if number >= each[0]), _SIZES[-1])
    return f"{number / size:.3g}{unit}"


def digest_of(sentence: Sentence) -> str:
    """Return the name of a sentence's cause in addresses; equal for runs with the same cause."""
    return hashlib.sha256(sentence.key.encode(errors="replace")).hexdigest()[:12]


def count(number: int) -> str:
    """Write a number, of which only so many were counted."""
    return f"{MANY - 1}+" if number >= MANY else str(number)


TEMPLATES: Final = Environment(
    loader=PackageLoader("flujo_client.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    each.__name__: each for each in (sentence, prose, ago, until, span, money, count, short, short_id)
}
TEMPLATES.filters |= {"query": query_of, "tone": tone_of}
TEMPLATES.globals |= {"icon": icon, "asset": lambda name: f"{STATIC}/{name}", "states": STATES}
