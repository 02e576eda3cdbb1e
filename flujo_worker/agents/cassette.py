"""Recorded answers of models: a test calls them once, and afterwards a readable JSON file answers.

    with cassette.override(summarise):
        engine.run(pipeline, "my invoice is wrong")

The key of an answer is the whole request in a form that has no times and no random ids. Secrets are hidden before anything is compared or
written.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from flujo_client.config.manager import Settings
from flujo_client.errors import ConfigurationError, NonRetryableError
from flujo_client.redact import redact_tree
from flujo_client.serial import canonical
from flujo_worker.agents.factory import library_agent
from flujo_worker.domain.nearest import nearest

DIFF_LINES = 60
_OF_A_PART = ("part_kind", "tool_name", "tool_call_id", "args", "content")
_OF_A_RESPONSE = ("parts", "usage", "model_name", "provider_name", "finish_reason", "kind")
_PLAIN = (str, int, float, bool, list, dict)


class Cassette:
    """The recordings of one JSON file, in the order in which they were made.

    With `cassettes.mode` `replay`, answers come from the file and no model is made or called; with `record`, models are called and the file
    is rewritten; with `none`, they are called and nothing is written. A repeated request gets the answer that it got then.

    Args:
        path: the file; its folders are created when it is written.
        settings: those with the mode.

    Raises ConfigurationError: the settings are those of production, or the file is not a cassette.
    """

    def __init__(self, path: Path | str, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        if settings.mode == "production":
            what = "a cassette must not answer in production"
            raise ConfigurationError(what, suggestion='use it in tests, with mode = "development"', code="CASSETTE")
        self.path, self.mode = Path(path), settings.cassettes.mode
        self._recordings = _read(self.path) if self.mode == "replay" else []
        self._asked: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def override(self, *agents: Any) -> Iterator[None]:
        """Let the cassette answer for these agents' models inside; raises ConfigurationError for an agent without a model.

        Args:
            agents: agents of `make_agent_async` or of pydantic-ai.
        """
        with ExitStack() as stack:
            for each in agents:
                agent = library_agent(each)
                if agent.model is None:
                    what = f"agent {each!r} has no model whose answers could be recorded"
                    raise ConfigurationError(what, suggestion="give it one", code="CASSETTE")
                stack.enter_context(agent.override(model=self.model(agent.model)))
            yield

    def model(self, model: Model[Any] | str) -> Model[Any]:
        """Return a model that answers as the mode says, in place of this one or the one of this name, such as `openai:gpt-4o-mini`."""
        return _CassetteModel(self, model)

    def find(self, request: Mapping[str, Any]) -> ModelResponse:
        """Return the recorded response to a request; raises NonRetryableError, with a diff, when there is none."""
        key = canonical(dict(request))
        with self._lock:
            same = [each for each in self._recordings if canonical(each["request"]) == key]
            place = min(self._asked[key], len(same) - 1)
            self._asked[key] += 1
        if not same:
            what = f"'{self.path}' has no recording of this request to {request['model']}; {self._nearest(request)}"
            way_out = "if the request is right, record it: set FLUJO_CASSETTES_MODE=record and run the test again"
            raise NonRetryableError(what, suggestion=way_out, code="NOT_RECORDED")
        [response] = ModelMessagesTypeAdapter.validate_python([same[place]["response"]])
        assert isinstance(response, ModelResponse)
        return response

    def add(self, request: Mapping[str, Any], response: ModelResponse) -> None:
        """Record a response, and write the file."""
        [tree] = ModelMessagesTypeAdapter.dump_python([response], mode="json")
        answer = redact_tree({name: tree[name] for name in _OF_A_RESPONSE})
        with self._lock:
            self._recordings.append({"request": request, "response": answer})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"recordings": self._recordings}, indent=2, ensure_ascii=False)
            self.path.write_text(text + "\n", encoding="utf-8")

    def _nearest(self, request: Mapping[str, Any]) -> str:
        if not self._recordings:
            return "it has no recordings"
        place, diff = nearest(_lines(request), [_lines(each["request"]) for each in self._recordings])
        more = f"\n… {len(diff) - DIFF_LINES} more lines" if len(diff) > DIFF_LINES else ""
        return f"the nearest is number {place + 1}, - recorded, + asked:\n" + "\n".join(diff[:DIFF_LINES]) + more


class _CassetteModel(Model[Any]):
    """Answers from a cassette, or asks the model and records its answer. The model is made when it is first asked."""

    def __init__(self, cassette: Cassette, model: Model[Any] | str) -> None:
        super().__init__(profile=_profile(model))
        self._cassette, self._model = cassette, model

    @property
    def model_name(self) -> str:
        return self._model.rpartition(":")[2] if isinstance(self._model, str) else self._model.model_name

    @property
    def system(self) -> str:
        return self._model.rpartition(":")[0] if isinstance(self._model, str) else self._model.system

    async def request(
        self, messages: list[ModelMessage], model_settings: Any, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        cassette = self._cassette
        asked = _canonical(f"{self.system}:{self.model_name}", messages, model_settings, model_request_parameters)
        if cassette.mode == "replay":
            return cassette.find(asked)
        self._model = infer_model(self._model)
        response = await self._model.request(messages, model_settings, model_request_parameters)
        if cassette.mode == "record":
            cassette.add(asked, response)
        return response


def _profile(model: Model[Any] | str) -> Any:
    """Return what a model can do; of one that is only named, what its provider says of it, without a key."""
    try:
        if not isinstance(model, str):
            return model.profile
        return infer_provider_class(model.rpartition(":")[0]).model_profile(model.rpartition(":")[2])
    except (ImportError, ValueError, NotImplementedError):  # no library, no provider, or several models: the defaults
        return None


def _canonical(
    model: str, messages: Sequence[ModelMessage], settings: ModelSettings | None, wanted: ModelRequestParameters
) -> dict[str, Any]:
    """Write a request as plain data without times, ids of runs, and secrets; calls of tools are numbered."""
    ids: dict[str, str] = {}
    dumped = [_message(each, ids) for each in ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")]
    options = {name: value for name, value in sorted((settings or {}).items()) if isinstance(value, _PLAIN)}
    tools, form = [_tool(each) for each in wanted.function_tools], wanted.output_object
    output = [_tool(each) for each in wanted.output_tools] if form is None else form.json_schema
    request = {"model": model, "messages": dumped, "settings": options, "tools": tools, "output": output}
    plain: dict[str, Any] = json.loads(json.dumps(redact_tree(request)))
    return plain


def _message(tree: Mapping[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    parts = [{name: part[name] for name in _OF_A_PART if part.get(name) is not None} for part in tree["parts"]]
    for part in parts:
        if "tool_call_id" in part:
            part["tool_call_id"] = ids.setdefault(part["tool_call_id"], f"call {len(ids) + 1}")
    message = {"kind": tree["kind"], "parts": parts}
    return message | ({"instructions": tree["instructions"]} if tree.get("instructions") else {})


def _tool(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "schema": tool.parameters_json_schema}


def _lines(request: Mapping[str, Any]) -> list[str]:
    return json.dumps(request, indent=1, ensure_ascii=False, sort_keys=True).splitlines()


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        recordings: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["recordings"]
        ModelMessagesTypeAdapter.validate_python([each["response"] for each in recordings])
        _ = [each["request"]["model"] for each in recordings]
    except (ValueError, KeyError, TypeError) as error:
        what = f"'{path}' is not a cassette"
        way_out = "record it again: FLUJO_CASSETTES_MODE=record"
        raise ConfigurationError(what, suggestion=way_out, code="CASSETTE", cause=error) from error
    return recordings
