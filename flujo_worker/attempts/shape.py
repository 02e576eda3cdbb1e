"""Make one attempt's output fit its schema, by AROS's parser with the step's settings, and where that refuses by the step's output processors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final

import orjson

from flujo_client.contract.outcome import Correction
from flujo_client.contract.processing import ProcessingConfigModel, ProcessingSettings
from flujo_client.errors import AgentIOValidationError
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.shaping import PLAIN, Origin, Schema
from flujo_worker.aros import parse
from flujo_worker.aros.decode import decode
from flujo_worker.aros.outcome import CUT, SCHEMA, ParseOutcome, Unfit
from flujo_worker.aros.type_judge import Judge, judge_of
from flujo_worker.aros.typed import decoded, schema_hash, schema_of, structured_type, validated
from flujo_worker.attempts.correction import OutputCorrection
from flujo_worker.attempts.shape_events import emit_custom, emit_outcome, stage_of
from flujo_worker.observe.log import emit

POLICY_VERSION: Final = "1"
"""The version of the repair rules: it changes when the same text may be read differently."""

MOST_ENFORCED: Final = 200_000
"""The length up to which `enforce_grammar` judges a text."""

_QUICK: Final = 65_536
"""The length up to which a text is parsed on the event loop; a longer one is parsed in a thread."""

STRICT: Final = ProcessingSettings(aop="off")
_CUT_OFF: Final = "the answer was cut off at the token limit; answer more briefly"


class OutputParser:
    """Reads one attempt's output; `raw` is the text that was read last, in which the precheck looks for a plan.

    Long texts are read in `threads`; `corrections` receives repairs, if the project has a ledger; `correction` is for the step's output
    processors, which get values that only the schema rejects.
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
        correction: OutputCorrection | None = None,
    ) -> None:
        self.settings, self.agent, self.model = settings, agent, model
        self._step, self._threads = step, threads
        self._began = time.monotonic()
        self.raw: str | None = None
        self._corrections, self._correction = corrections, correction

    @property
    def was_corrected(self) -> bool:
        """Return whether the output processors have had this output already."""
        return self._correction is not None and self._correction.was_tried

    @property
    def looks(self) -> bool:
        """Return whether outputs are parsed, or judged by their grammar."""
        return self.settings.parsing.aop != "off" or self.settings.enforce_grammar

    @property
    def changes(self) -> bool:
        """Return whether the parsed value replaces the output."""
        return self.settings.parsing.aop != "off" and not self.settings.shadow

    async def read(self, raw: Any, schema: Schema | None, origin: Origin = PLAIN) -> Any:
        """Return `raw` itself if nothing had to be done, else its meaning: JSON text for a text, data for data.

        A rejection mentions it if the answer was cut. Raises AgentIOValidationError: it cannot be made valid; names place, expected and
        found.
        """
        text = raw if isinstance(raw, str) else _as_json(raw)
        self.raw = text
        if self.settings.enforce_grammar:
            await self._enforce(text, schema)
        if self.settings.parsing.aop == "off":
            return raw
        judge = self._judge(origin)
        outcome = await self._parse(text, schema or {}, self.settings.parsing, judge)
        more = await self._next_level(text, schema, judge) if self.settings.shadow and not outcome.ok else {}
        if self._may_correct(outcome, origin):
            outcome = await self._correct(outcome, schema, origin)
        emit_outcome(outcome, text, schema, self._shadow, more)
        if self.settings.shadow or (outcome.ok and not outcome.transforms):
            return raw
        if not outcome.ok:
            raise self._refusal(outcome, origin)
        self._record_correction(outcome, schema)
        return _as_json(outcome.value) if isinstance(raw, str) else outcome.value

    async def fit(
        self, readable: Any, schema: Schema | None, validate: Callable[[Any], Awaitable[Any]], origin: Origin = PLAIN
    ) -> Any:
        """Validate a parsed output by its type, and once more after the output processors. Raises AgentIOValidationError: it stays invalid."""
        try:
            return await validate(readable)
        except AgentIOValidationError as error:
            refusal = error
        if self._correction is not None and self._correction.was_tried:
            raise self._correction.blamed(refusal)
        unfit = Unfit(decode(readable) if isinstance(readable, str) else readable) if refusal.rule == SCHEMA else None
        details = {**refusal.details, "rule": SCHEMA}
        refused = ParseOutcome(ok=False, feedback=refusal.message, stage="semantic", unfit=unfit, **details)
        if not self._may_correct(refused, origin):
            raise refusal
        outcome = await self._correct(refused, schema, origin)
        if outcome is refused:
            raise refusal
        if not outcome.ok:
            raise self._refusal(outcome, origin)
        try:
            fitted = await validate(_as_json(outcome.value) if isinstance(readable, str) else outcome.value)
        except AgentIOValidationError as error:
            assert self._correction is not None
            raise self._correction.blamed(error) from None
        emit("output.coercion.attempt", stage="custom", reason=refusal.rule)
        emit_custom([each.name for each in outcome.transforms])
        self._record_correction(outcome, schema)
        return fitted

    def _may_correct(self, outcome: ParseOutcome, origin: Origin) -> bool:
        """Return whether the output processors may still correct the output: never an answer that was cut."""
        is_refused = self.changes and not outcome.ok and outcome.unfit is not None
        return is_refused and self._correction is not None and origin.is_whole and not origin.is_cut

    async def _correct(self, refused: ParseOutcome, schema: Schema | None, origin: Origin) -> ParseOutcome:
        assert self._correction is not None

        async def judge(text: str) -> ParseOutcome:
            return await self._parse(text, schema or {}, STRICT, self._judge(origin))

        return await self._correction.outcome(refused, judge, origin.key)

    def _judge(self, origin: Origin) -> Judge | None:
        return None if self.settings.strict_schema or origin.kind is None else judge_of(origin.kind)

    async def _enforce(self, text: str, schema: Schema | None) -> None:
        """Judge the unchanged text."""
        data: dict[str, Any] = {"mode": self.settings.structured_output}
        if schema is None or len(text) > MOST_ENFORCED:
            emit("grammar.enforce.skipped", **data, reason="no_schema" if schema is None else "too_long")
            return
        data["schema_hash"] = schema_hash(schema)
        outcome = await self._parse(text, schema, STRICT)
        emit(f"grammar.enforce.{'pass' if outcome.ok else 'fail'}", **data, **self._shadow)
        if not outcome.ok and not self.settings.shadow:
            raise _error(outcome, "the output does not match its grammar: ")

    async def _parse(
        self, text: str, schema: Schema, settings: ProcessingSettings, judge: Judge | None = None
    ) -> ParseOutcome:
        """Parse a text, a long one in a thread, so that it does not delay other attempts."""
        if len(text) <= _QUICK:
            return _parse_now(text, schema, settings, judge)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _parse_now, text, schema, settings, judge)

    def _refusal(self, outcome: ParseOutcome, origin: Origin) -> AgentIOValidationError:
        return _error(outcome, f"{_CUT_OFF}: ", CUT) if origin.is_cut else _error(outcome)

    async def _next_level(self, text: str, schema: Schema | None, judge: Judge | None) -> dict[str, Any]:
        """Return what the next level up would have read, so that a retry's value can be compared with it."""
        parsing = self.settings.parsing
        level = min(2, parsing.level + 1 if parsing.full else 0)
        outcome = await self._parse(text, schema or {}, replace(parsing, aop="full", tolerant_level=level), judge)
        hashed = hashlib.sha256(json.dumps(outcome.value, sort_keys=True).encode()).hexdigest()
        found = {"value_hash": hashed} if outcome.ok else {"rule": outcome.rule}
        return {"next_level": {"aop": "full", "tolerant_level": level, "ok": outcome.ok, **found}}

    @property
    def _shadow(self) -> dict[str, Any]:
        return {"shadow": True} if self.settings.shadow else {}

    def _record_correction(self, outcome: ParseOutcome, schema: Schema | None) -> None:
        if not self.settings.ledger:
            return
        correction = Correction(
            step_name=self._step,
            agent_id=self.agent,
            provider_model=self.model,
            schema_hash=schema_hash(schema),
            policy_version=POLICY_VERSION,
            stage=stage_of(outcome.stage),
            repair_depth=len(outcome.transforms),
            transforms=tuple(each.name for each in outcome.transforms),
            latency_ms_saved=1000 * (time.monotonic() - self._began),
        )
        self._corrections.append(correction)


def _error(outcome: ParseOutcome, prefix: str = "", rule: str | None = None) -> AgentIOValidationError:
    details = outcome.details if rule is None else outcome.details | {"rule": rule}
    return AgentIOValidationError(f"{prefix}{outcome.feedback or ''}", **details)


def _parse_now(text: str, schema: Schema, settings: ProcessingSettings, judge: Judge | None) -> ParseOutcome:
    return parse(text, dict(schema), settings, clock=time.thread_time, judge=judge)


async def shaped(answer: AgentAnswer, agent: Any, shape: OutputParser) -> Any:
    """Return the output that an answer represents.

    A text is read where JSON is expected: the step has a schema, or the agent declares a type for its output. Data are read only by the
    step's own schema; an agent's own side may have done all this already. Raises AgentIOValidationError: it cannot be made to hold.
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
    origin = Origin(kind=declared if own is None else None)
    read = await shape.read(text, schema, origin)
    if not shape.changes:
        return text

    async def validate(readable: str) -> Any:
        return validated(readable, declared)

    return await shape.fit(read, schema, validate, origin)


def _as_json(value: Any) -> str:
    """Return data as JSON text, with integers beyond 64 bits too, which orjson refuses. Raises AgentIOValidationError: JSON does not have something in it."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)  # raised from it, this would be reported as the root cause
    raise AgentIOValidationError(f"the output must match a JSON Schema, but is not JSON: {why}", rule="no-json")
