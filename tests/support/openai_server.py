"""A small OpenAI-compatible server on this machine: scripted answers out, the JSON of every request kept.

It knows chat completions and responses, and nothing of what a model does. In: answers, as a list or as a function of the request.
Out: `requests`, in the order they came.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Said:
    """One answer.

    Attributes:
        text: what the model says.
        arguments: what it calls the request's first tool with, instead of saying anything.
        finish_reason: as chat completions call it; `length` becomes an incomplete response of the Responses API.
        usage: tokens in and out.
        status: an HTTP error instead of an answer.
        headers: what it is sent with.
        body: what is sent in place of all that, as it is, and its type in `content_type`.
        delay_s: seconds until it is sent.
        drops: the connection is closed in the middle of it.
        pause_s: seconds between the words of an answer that is streamed.
    """

    text: str = ""
    arguments: str | None = None
    finish_reason: str = "stop"
    usage: tuple[int, int] = (10, 5)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"
    delay_s: float = 0.0
    drops: bool = False
    pause_s: float = 0.0


@dataclass(frozen=True)
class Request:
    """What was asked: the path, the body as it came and as JSON, and the headers."""

    path: str
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self):
        return json.loads(self.raw)

    @property
    def tool(self):
        """The first tool's name; the two endpoints write it in different places."""
        first = self.body["tools"][0]
        return first["function"]["name"] if "function" in first else first["name"]


class OpenAIServer:
    """Serves while it is entered.

    Attributes:
        requests: what was asked so far.
        answers: texts or `Said`, the last of them again and again; or a function of the `Request` that makes one.
    """

    def __init__(self, answers=("{}",)):
        self.answers = answers if callable(answers) else list(answers)
        self.requests = []
        self.is_over = threading.Event()

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def provider(self):
        """Return pydantic-ai's provider for this server; it reads no certificates, which takes longer than a test."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        from pydantic_ai.providers.openai import OpenAIProvider

        http = DefaultAsyncHttpxClient(verify=False)
        return OpenAIProvider(openai_client=AsyncOpenAI(base_url=self.url, api_key="none", http_client=http))

    @property
    def bodies(self):
        return [request.body for request in self.requests]

    def answer(self, request):
        self.requests.append(request)
        if callable(self.answers):
            said = self.answers(request)
        else:
            said = self.answers[min(len(self.requests), len(self.answers)) - 1]
        return Said(said) if isinstance(said, str) else said


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: OpenAIServer

    def do_POST(self):
        request = Request(self.path, self.rfile.read(int(self.headers["content-length"])), dict(self.headers))
        said = self.server_of.answer(request)
        self.server_of.is_over.wait(said.delay_s)
        data = said.body
        pieces = [data]
        if data is None:
            tree = _error(said) if said.status >= 400 else _ANSWERS[self.path](request, said)
            pieces = [json.dumps(tree).encode()]
            if said.status < 400 and request.body.get("stream"):
                said, pieces = replace(said, content_type="text/event-stream"), _pieces(tree, by_word=said.pause_s > 0)
        self._send(said, pieces)

    def _send(self, said, pieces):
        data = b"".join(pieces)
        self.send_response(said.status)
        self.send_header("content-type", said.content_type)
        for name, value in said.headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        for piece in pieces if said.pause_s else [data[: len(data) // 2] if said.drops else data]:
            self.wfile.write(piece)
            self.server_of.is_over.wait(said.pause_s)
        self.close_connection = said.drops

    def log_message(self, *_):
        """Say nothing: the requests are kept."""


def _error(said):
    return {"error": {"message": said.text or "no", "type": "test", "param": None, "code": None}}


def _chat(request, said):
    message = {"role": "assistant", "content": said.text or None}
    if said.arguments is not None:
        call = {"name": request.tool, "arguments": said.arguments}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
    spent_in, spent_out = said.usage
    return {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": request.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": said.finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": spent_in,
            "completion_tokens": spent_out,
            "total_tokens": spent_in + spent_out,
        },
    }


def _pieces(tree, *, by_word):
    """Return a chat completion in pieces, as server-sent events: each word, else two halves; then its end, and what it has used."""
    choice, rest = tree["choices"][0], {**tree, "object": "chat.completion.chunk", "usage": None}
    message = choice["message"]
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", ()))]
    text = message["content"] or ""
    texts = text.split(" ") if by_word else [text[: len(text) // 2], text[len(text) // 2 :]]
    deltas = [{"content": f"{each} " if by_word and n < len(texts) - 1 else each} for n, each in enumerate(texts)]
    deltas = (
        [{"role": "assistant", "tool_calls": calls}] if calls else [{"role": "assistant", **deltas[0]}, *deltas[1:]]
    )
    chunks = [{**rest, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{**rest, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}]
    chunks += [{**rest, "choices": [], "usage": tree["usage"]}]
    return [*(b"data: %s\n\n" % json.dumps(each).encode() for each in chunks), b"data: [DONE]\n\n"]


def _responses(request, said):
    item = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": said.text, "annotations": []}],
    }
    if said.arguments is not None:
        item = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "status": "completed",
            "name": request.tool,
            "arguments": said.arguments,
        }
    is_cut = said.finish_reason == "length"
    spent_in, spent_out = said.usage
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "model": request.body["model"],
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": spent_in,
            "output_tokens": spent_out,
            "total_tokens": spent_in + spent_out,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


_ANSWERS = {"/v1/chat/completions": _chat, "/v1/responses": _responses}
