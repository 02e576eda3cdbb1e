"""A step's `processing` block: how its model's output is asked for, read, repaired and judged, checked once.

It must not read files or the environment: the block and the project's `[aros]` table arrive as data. In: mappings with the seed's
keys; out: frozen values, or a `BlueprintError` that names the key, what it may be, and the nearest name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Self

from flujo_client.contract.suggestions import did_you_mean
from flujo_client.contract.validators import flag, known, number, one_of, refused, text, texts

MODES: Final = ("off", "minimal", "full")
LEVELS: Final = (0, 1, 2)
STRATEGIES: Final = ("first-pass",)
STRUCTURED: Final = ("off", "auto", "openai_json", "outlines", "xgrammar")
INJECTIONS: Final = ("prepend", "context_key")
CONVERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "integer": ("str->int",),
    "number": ("str->float", "str->int"),
    "boolean": ("str->bool",),
    "array": ("str->array", "T->[T]"),
    "object": ("str->object",),
}
"""What `coercion.allow` may list for each type that a schema asks for."""

MAX_STEPS: Final = 250_000
"""Steps of searching and repairing one text, by default."""

MOST_SAMPLES: Final = 5
"""Plans that the consensus gate may sample."""

PRECHECK_AGENTS: Final = ("validator_agent", "agent", "consensus_agent")
"""The keys of `reasoning_precheck` that name an agent, or hold one."""

_OTHERS = (
    *("structured_output", "schema", "strict_schema", "enforce_grammar"),
    *("reasoning_precheck", "shadow", "typed_fast_path", "batch"),
)
PROCESSING_KEYS: Final = ("aop", "coercion", *_OTHERS)


@dataclass(frozen=True, slots=True)
class ProcessingSettings:
    """The limits of the parser. Raises BlueprintError, which names the key, for a value that is not allowed."""

    aop: str = "minimal"
    """`off`, `minimal` or `full`."""
    tolerant_level: int = 0
    """0 strict, 1 JSON5, 2 repair; has an effect only if `aop` is `full`."""
    allow: Mapping[str, Iterable[str]] = field(default_factory=dict, hash=False)
    """The conversions allowed for each type; none by default."""
    max_unescape_depth: int = 2
    """The number of layers of encoding that are undone."""
    anyof_strategy: str = "first-pass"
    """`first-pass`, the only one defined."""
    max_characters: int = 16_000_000
    """The maximum length of a text that is searched and repaired; a longer one is only decoded."""
    max_steps: int = MAX_STEPS
    """The maximum steps of searching and repairing one text, about one for each bracket, scalar and separator."""
    max_ms_per_mb: float = 50.0
    """Processor time of the search for the value, in milliseconds for each megabyte beyond the first quarter of a
    second; counted if the caller passes a clock.
    """

    def __post_init__(self) -> None:
        one_of("aop", self.aop, MODES)
        one_of("coercion.tolerant_level", self.tolerant_level, LEVELS)
        one_of("coercion.anyof_strategy", self.anyof_strategy, STRATEGIES)
        number("coercion.max_unescape_depth", self.max_unescape_depth, least=0, whole=True)
        for key in ("max_characters", "max_steps"):
            number(f"coercion.{key}", getattr(self, key), least=1, whole=True)
        number("coercion.max_ms_per_mb", self.max_ms_per_mb, least=0)
        object.__setattr__(self, "allow", MappingProxyType(_allowed(self.allow)))

    @classmethod
    def read(cls, block: ProcessingSettings | Mapping[str, Any]) -> ProcessingSettings:
        """Take the parser's keys out of a `processing` block; the other keys of the block are left to their readers."""
        if isinstance(block, ProcessingSettings):
            return block
        known("processing", block, PROCESSING_KEYS)
        coercion = block.get("coercion") or {}
        known("processing.coercion", coercion, tuple(each.name for each in fields(cls) if each.name != "aop"))
        given = {**({"aop": block["aop"]} if "aop" in block else {}), **coercion}
        return cls(**{key: value for key, value in given.items() if value is not None})

    @property
    def full(self) -> bool:
        """Return whether tiers, unions and list conversions are on."""
        return self.aop == "full"

    @property
    def level(self) -> int:
        """Return the tolerant level that counts: none outside `full`."""
        return self.tolerant_level if self.full else 0

    def permits(self, kind: str, conversion: str) -> bool:
        return conversion in self.allow.get(kind, ())


@dataclass(frozen=True, slots=True)
class PrecheckSettings:
    """The reasoning precheck."""

    enabled: bool = False
    validator_agent: Any = field(default=None, hash=False)
    """The agent that judges a plan, or a reference to it. `agent` is another name for it."""
    max_tokens: int = 200
    """The maximum tokens of an answer, sent to the validator and to the consensus agent; a longer answer does not count."""
    timeout_s: float = 10.0
    """The maximum seconds of the whole precheck."""
    score_threshold: float = 0.7
    """A score below it is a failure."""
    required_context_keys: tuple[str, ...] = ()
    """Keys that the context must have, not null."""
    inject_feedback: str | None = None
    """The place of the feedback: `prepend` to a text input, `context_key`, or None for events only."""
    retry_guidance_prefix: str = "Guidance: "
    """The text that `prepend` writes before the feedback."""
    context_feedback_key: str = "_aros_retry_guidance"
    """The context's key that gets the feedback for this attempt, with `context_key`."""
    delimiters: tuple[str, str] = ("<thinking>", "</thinking>")
    """The texts before and after a plan."""
    goal_context_key: str | None = None
    """The context's field with the goal of the plan, passed to the validator."""
    consensus_agent: Any = field(default=None, hash=False)
    """The agent that writes the plans to compare; without one there is no consensus gate."""
    consensus_samples: int = 2
    """The number of compared plans, at most 5."""
    consensus_threshold: float = 0.7
    """An agreement (mean pairwise Jaccard) below it is a disagreement."""

    def __post_init__(self) -> None:
        where = "reasoning_precheck."
        flag(f"{where}enabled", self.enabled)
        number(f"{where}max_tokens", self.max_tokens, least=1, whole=True)
        number(f"{where}timeout_s", self.timeout_s, least=0)
        number(f"{where}score_threshold", self.score_threshold, least=0, most=1)
        number(f"{where}consensus_threshold", self.consensus_threshold, least=0, most=1)
        number(f"{where}consensus_samples", self.consensus_samples, least=2, most=MOST_SAMPLES, whole=True)
        if self.inject_feedback is not None:
            one_of(f"{where}inject_feedback", self.inject_feedback, INJECTIONS)
        for key in ("retry_guidance_prefix", "context_feedback_key"):
            text(f"{where}{key}", getattr(self, key))
        if self.goal_context_key is not None:
            text(f"{where}goal_context_key", self.goal_context_key)
        for key in ("required_context_keys", "delimiters"):
            object.__setattr__(self, key, texts(f"{where}{key}", getattr(self, key)))
        if len(self.delimiters) != 2 or not all(self.delimiters):  # noqa: PLR2004 - one before, one after
            message = f"{list(self.delimiters)!r} must be two texts"
            raise refused(f"{where}delimiters", message, 'write ["<plan>", "</plan>"]')

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Read the `reasoning_precheck` table of a block. Raises BlueprintError, naming the key."""
        names = tuple(each.name for each in fields(cls))
        known("processing.reasoning_precheck", table, (*names, "agent"))
        given = {key: value for key, value in table.items() if value is not None}
        if "agent" in given and "validator_agent" in given:
            raise refused("reasoning_precheck.agent", "is an alias of `validator_agent`", "keep `validator_agent`")
        if "agent" in given:
            given["validator_agent"] = given.pop("agent")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a durable step's model requests are asked in batches."""

    deadline_s: float = 86_400.0
    """Seconds after which a request that has no answer is asked live."""
    wait_s: float = 30.0
    """Seconds that a request waits for others before its batch is submitted."""
    poll_s: float = 60.0
    """Seconds until the provider is asked first whether a batch has ended; an older batch is asked about less often."""

    def __post_init__(self) -> None:
        for each in fields(self):
            number(f"batch.{each.name}", getattr(self, each.name), least=0)

    @classmethod
    def of(cls, block: Mapping[str, Any] | None) -> Self | None:
        """Read a block's `batch`: true, or a table; None if requests are asked live. Raises BlueprintError, naming the key."""
        given = (block or {}).get("batch")
        if isinstance(given, Mapping):
            known("processing.batch", given, tuple(each.name for each in fields(cls)))
            return cls(**given)
        flag("batch", given or False)
        return cls() if given else None


@dataclass(frozen=True, slots=True)
class ProcessingConfigModel:
    """A whole `processing` block, with the project's defaults under it."""

    structured_output: str = "auto"
    """`off`, `auto`, `openai_json`, or the experimental `outlines` and `xgrammar`."""
    parsing: ProcessingSettings = field(default_factory=ProcessingSettings)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    """The JSON Schema of the output; None leaves it to the agent's output type."""
    strict_schema: bool = False
    """Refuse what the schema of the agent's output type refuses, even if the type's own validators, aliases or enum
    hooks take it.
    """
    enforce_grammar: bool = False
    """Refuse a text that does not match the schema before any repair."""
    precheck: PrecheckSettings = field(default_factory=PrecheckSettings)
    shadow: bool = False
    """Decide and log, but change nothing."""
    typed_fast_path: bool = False
    """Decode straight into the output type first."""
    ledger: bool = False
    """Write accepted repairs to the correction ledger; set for the project only."""

    @classmethod
    def read(cls, block: Mapping[str, Any]) -> Self:
        """Read a block, case-insensitive in `structured_output`.

        Raises:
            BlueprintError: for an unknown key (with the nearest one) or a value that is not allowed.
        """
        parsing = ProcessingSettings.read(block)
        given = {key: block[key] for key in _OTHERS if block.get(key) is not None}
        mode = given.get("structured_output", "auto")
        mode = mode.lower() if isinstance(mode, str) else mode
        one_of("structured_output", mode, STRUCTURED)
        for key in ("strict_schema", "enforce_grammar", "shadow", "typed_fast_path"):
            flag(key, given.get(key, False))
        schema = given.get("schema")
        if schema is not None and not isinstance(schema, Mapping):
            message = f"expected a JSON Schema object, got {type(schema).__name__}"
            raise refused("schema", message, '{"type": "object", …}')
        BatchSettings.of(block)
        given.pop("batch", None)  # it is about the way to the provider, and not about the answer
        precheck = PrecheckSettings.read(given.pop("reasoning_precheck", {}))
        return cls(**{**given, "structured_output": mode, "parsing": parsing, "precheck": precheck})


def resolve(block: Mapping[str, Any] | None, table: Mapping[str, Any] | None) -> ProcessingConfigModel | None:
    """Merge a step's own block over the project's `[aros]` table over the defaults; None if AROS must not act. Raises BlueprintError."""
    known, block = table or {}, (block if block is None or list(block) != ["batch"] else None)
    if (block is None and table is None) or not known.get("enabled", True):
        return None
    read = ProcessingConfigModel.read(_over(dict(block or {}), _defaults(known)))
    return replace(read, ledger=bool(known.get("correction_ledger_enabled")))


_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "structured_output_default": ("structured_output",),
    "enable_aop_default": ("aop",),
    "coercion_tolerant_level": ("coercion", "tolerant_level"),
    **{name: ("coercion", name) for name in ("max_unescape_depth", "anyof_strategy", "max_characters")},
    **{name: ("coercion", name) for name in ("max_steps", "max_ms_per_mb")},
    "enable_reasoning_precheck": ("reasoning_precheck", "enabled"),
    "strict_schema": ("strict_schema",),
    "shadow_mode": ("shadow",),
}
"""The place of each key of `[aros]` in a block."""


def _defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for key, (*above, last) in _TABLE.items():
        if key in table:
            place = block
            for part in above:
                place = place.setdefault(part, {})
            place[last] = table[key]
    return block


def _over(block: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in defaults.items():
        own = block.get(key)
        if own is None:
            block[key] = value
        elif isinstance(own, Mapping) and isinstance(value, Mapping):
            block[key] = _over(dict(own), value)
    return block


def _allowed(allow: object) -> dict[str, frozenset[str]]:
    known("processing.coercion.allow", allow, tuple(CONVERSIONS))
    assert isinstance(allow, Mapping)
    return {kind: _conversions(kind, tokens) for kind, tokens in allow.items()}


def _conversions(kind: str, tokens: object) -> frozenset[str]:
    where = f"coercion.allow.{kind}"
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise refused(where, "expected a list", f'write ["{CONVERSIONS[kind][0]}"]')
    listed = frozenset(tokens)
    for token in sorted(listed.difference(CONVERSIONS[kind]), key=str):
        way_out = did_you_mean(token, CONVERSIONS[kind]) or f"known: {', '.join(CONVERSIONS[kind])}"
        raise refused(where, f"unknown conversion {token!r}", way_out)
    return listed
