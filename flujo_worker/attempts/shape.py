"""One attempt's output made to fit its schema, and the story of it: AROS's parser with the step's settings, told as events.

It must not call an agent or decide about another try. In: what the model wrote, and the schema it has to hold under; out: the same,
or what it means, or `AgentIOValidationError` with the parser's feedback, which the next attempt is told.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import time
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import orjson

from flujo_client.contract.outcome import Correction
from flujo_client.contract.processing import ProcessingSettings
from flujo_client.errors import AgentIOValidationError
from flujo_worker.aros import parse
from flujo_worker.aros.outcome import CUT
from flujo_worker.aros.typed import decoded, schema_hash, schema_of, structured_type, validated
from flujo_worker.observe.log import emit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from flujo_client.contract.processing import ProcessingConfigModel
    from flujo_worker.agents.answer import AgentAnswer
    from flujo_worker.aros.outcome import ParseOutcome, Preview

POLICY_VERSION: Final = "1"
"""Of the rules of repair: it grows when the same text may be read otherwise."""

MOST_ENFORCED: Final = 200_000
"""Characters that `enforce_grammar` looks at; a longer text is not judged."""

_QUICK: Final = 65_536
"""Characters that are read at once; a longer text is read in a thread."""

_STRICT: Final = ProcessingSettings(aop="off")
_SHOWN: Final = 200
_WHY: Final = {"extract": "text around it", "tolerant": "no JSON", "syntactic": "no JSON", "semantic": "other types"}
_CUT_OFF: Final = "the answer was cut off at the token limit; answer more briefly"


class OutputParser:
    """Reads one attempt's output.

    Args:
        settings: the step's processing, resolved.
        step: its name, for the ledger.
        agent, model: who is asked, as events and the ledger name them.
        threads: where long texts are read.
        corrections: gets what was repaired, if the project keeps a ledger.

    Attributes:
        raw: the text that was read last, for who looks for a plan in it.
    """

    def __init__(
        self,
        settings: ProcessingConfigModel,
        *,
        step: str,
        agent: str | None,
        model: str | None,
        threads: Executor,
        corrections: list[Correction],
    ) -> None:
        self.settings, self.agent, self.model = settings, agent, model
        self._step, self._threads = step, threads
        self._began = time.monotonic()
        self.raw: str | None = None
        self._corrections = corrections

    @property
    def looks(self) -> bool:
        """Whether outputs are looked at: to be read, or to be judged by their grammar."""
        return self.settings.parsing.aop != "off" or self.settings.enforce_grammar

    @property
    def changes(self) -> bool:
        """Whether what is read takes the output's place."""
        return self.settings.parsing.aop != "off" and not self.settings.shadow

    async def read(self, raw: Any, schema: Mapping[str, Any] | None, *, finish_reason: str | None = None) -> Any:
        """Give back `raw` itself if nothing had to be done, else what it means: JSON text for a text, data for data.

        Args:
            raw: a text, or data that the provider's client has decoded.
            schema: what it has to hold under; None for any JSON.
            finish_reason: why the model stopped; after `length` a refusal says that the answer was cut.

        Raises:
            AgentIOValidationError: it cannot be made to hold; names place, expected and found.
        """
        text = raw if isinstance(raw, str) else _written(raw)
        self.raw = text
        if self.settings.enforce_grammar:
            await self._enforce(text, schema)
        if self.settings.parsing.aop == "off":
            return raw
        outcome = await self._parsed(text, schema or {}, self.settings.parsing)
        more = await self._next_level(text, schema) if self.settings.shadow and not outcome.ok else {}
        self._emit_repairs(outcome, text, schema, more)
        if self.settings.shadow or (outcome.ok and not outcome.transforms):
            return raw
        if not outcome.ok:
            raise self._refusal(outcome, finish_reason)
        self._record_correction(outcome, schema)
        return _written(outcome.value) if isinstance(raw, str) else outcome.value

    async def _enforce(self, text: str, schema: Mapping[str, Any] | None) -> None:
        """Judge the text as it came, before anything is done about it."""
        data: dict[str, Any] = {"mode": self.settings.structured_output}
        if schema is None or len(text) > MOST_ENFORCED:
            emit("grammar.enforce.skipped", **data, reason="no_schema" if schema is None else "too_long")
            return
        data["schema_hash"] = schema_hash(schema)
        outcome = await self._parsed(text, schema, _STRICT)
        emit(f"grammar.enforce.{'pass' if outcome.ok else 'fail'}", **data, **self._shadow())
        if not outcome.ok and not self.settings.shadow:
            raise AgentIOValidationError(
                f"the output does not match its grammar: {outcome.feedback}",
                rule=outcome.rule or "schema",
                pointer=outcome.pointer or "",
            )

    async def _parsed(self, text: str, schema: Mapping[str, Any], settings: ProcessingSettings) -> ParseOutcome:
        """Parse; what may take long does not hold up the other attempts of this process."""
        if len(text) <= _QUICK:
            return parse(text, dict(schema), settings)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, parse, text, dict(schema), settings)

    def _refusal(self, outcome: ParseOutcome, finish_reason: str | None) -> AgentIOValidationError:
        if finish_reason == "length":
            return AgentIOValidationError(f"{_CUT_OFF}: {outcome.feedback}", rule=CUT, pointer=outcome.pointer or "")
        return AgentIOValidationError(
            outcome.feedback or "", rule=outcome.rule or "schema", pointer=outcome.pointer or ""
        )

    def _emit_repairs(
        self, outcome: ParseOutcome, text: str, schema: Mapping[str, Any] | None, more: dict[str, Any]
    ) -> None:
        """Tell what was done, stage by stage; nothing for a text that was right as it came."""
        types = {"expected_type": _expected(schema), "actual_type": _actual(text)}
        for stage, group in groupby(outcome.transforms, key=lambda each: _stage(each.stage)):
            done = list(group)
            emit("output.coercion.attempt", stage=stage, reason=_WHY[stage], **types, **self._shadow())
            data: dict[str, Any] = {"transforms": [each.name for each in done]}
            if stage == "semantic":
                data |= {"conversions": [each.attributes() for each in done][:20], **_branches(outcome)}
            if stage == "tolerant" and outcome.preview is not None:
                data |= {"patch_preview": outcome.preview._asdict(), "similarity": _similarity(outcome.preview)}
            emit("output.coercion.success", stage=stage, **data, **self._shadow())
        if not outcome.ok:
            self._emit_refusal(outcome, types, more)
        if outcome.transforms or not outcome.ok:
            self._sum_up(outcome)

    def _emit_refusal(self, outcome: ParseOutcome, types: dict[str, Any], more: dict[str, Any]) -> None:
        stage = _stage(outcome.stage)
        data = {"rule": outcome.rule, "pointer": outcome.pointer, "error_preview": (outcome.feedback or "")[:_SHOWN]}
        emit("output.coercion.attempt", stage=stage, reason=outcome.rule, **types, **self._shadow())
        emit("output.coercion.fail", level="warning", stage=stage, **data, **self._shadow(), **more)

    async def _next_level(self, text: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
        """Say what the next level up would have read, so that a retry's value can be compared with it."""
        parsing = self.settings.parsing
        level = min(2, parsing.level + 1 if parsing.full else 0)
        outcome = await self._parsed(text, schema or {}, replace(parsing, aop="full", tolerant_level=level))
        found = {"value_hash": _hashed(outcome.value)} if outcome.ok else {"rule": outcome.rule}
        return {"next_level": {"aop": "full", "tolerant_level": level, "ok": outcome.ok, **found}}

    def _sum_up(self, outcome: ParseOutcome) -> None:
        """One event for each family of stages and attempt."""
        acted = {"coercion" if each.stage == "semantic" else "syntactic" for each in outcome.transforms}
        failed = None if outcome.ok else "coercion" if outcome.stage == "semantic" else "syntactic"
        for family in ("syntactic", "coercion"):
            result = "fail" if family == failed else "success" if family in acted else "skip"
            why: dict[str, Any] = {"rule": outcome.rule} if family == failed else {}
            emit(f"aros.aop.{family}.{result}", **why, **self._shadow())

    def _shadow(self) -> dict[str, Any]:
        return {"shadow": True} if self.settings.shadow else {}

    def _record_correction(self, outcome: ParseOutcome, schema: Mapping[str, Any] | None) -> None:
        if self.settings.ledger:
            self._corrections.append(
                Correction(
                    step_name=self._step,
                    agent_id=self.agent,
                    provider_model=self.model,
                    schema_hash=schema_hash(schema),
                    policy_version=POLICY_VERSION,
                    stage=_stage(outcome.stage),
                    repair_depth=len(outcome.transforms),
                    transforms=tuple(each.name for each in outcome.transforms),
                    latency_ms_saved=1000 * (time.monotonic() - self._began),
                )
            )


async def shaped(answer: AgentAnswer, agent: Any, shape: OutputParser) -> Any:
    """Give the output that an answer stands for.

    A text is read where JSON is expected: the step has a schema, or the agent declares a type for its output. Data are read only by
    the step's own schema; an agent's own side may have done all this already.

    Raises:
        AgentIOValidationError: it cannot be made to hold.
    """
    output, own = answer.output, shape.settings.schema
    if answer.is_shaped or not shape.looks:
        return output
    if isinstance(output, str):
        return await _read(output, structured_type(agent), shape)
    if own is not None and isinstance(output, dict | list):
        return await shape.read(output, own)
    return output


async def _read(text: str, declared: Any, shape: OutputParser) -> Any:
    own = shape.settings.schema
    is_fast = shape.settings.typed_fast_path and shape.changes and not shape.settings.enforce_grammar
    if is_fast and declared is not None and own is None:
        try:
            return decoded(text, declared)
        except ValueError:
            pass  # the usual way says what is wrong with it
    schema = own or (None if declared is None else schema_of(declared))
    if schema is None:
        return text
    read = await shape.read(text, schema)
    return validated(read, declared) if shape.changes else text


def _written(value: Any) -> str:
    """Write data as JSON; integers beyond 64 bits are orjson's limit, not ours.

    Raises:
        AgentIOValidationError: there is something in it that JSON does not have.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)  # raised from it, this would be told as the root cause
    raise AgentIOValidationError(f"the output must match a JSON Schema, but is not JSON: {why}", rule="no-json")


def _hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _similarity(preview: Preview) -> float:
    """How much of what was shown stayed, from 0 to 1; of the previews only, for it grows with their product."""
    return round(difflib.SequenceMatcher(None, preview.before, preview.after, autojunk=False).ratio(), 2)


def _stage(name: str) -> str:
    """Undoing an encoding is a part of Stage 0, and a text that was never repaired failed at its syntax."""
    return {"unescape": "extract", "parse": "syntactic"}.get(name, name)


def _branches(outcome: ParseOutcome) -> dict[str, Any]:
    if not outcome.branches:
        return {}
    return {"branch_index": next(iter(outcome.branches.values())), "branch_choices": dict(outcome.branches)}


def _expected(schema: Mapping[str, Any] | None) -> str:
    kind = (schema or {}).get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def _actual(text: str) -> str:
    """Name what the text looks like."""
    return {"{": "object", "[": "array", '"': "string", "": "empty"}.get(text.strip()[:1], "text")
