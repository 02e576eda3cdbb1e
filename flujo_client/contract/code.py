"""The code that a step was performed with: a digest for each function, prompt, tool and model setting, by name. Pure.

A plan's fingerprint leaves these out, so a worker records them with each attempt. They are content-addressed: an attempt and a
conversation name a `CodeVersion` by its digest, and each version is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, get_args

from flujo_client.serial import digest, storable_text

OnBodyChange: TypeAlias = Literal["ignore", "warn", "park"]
"""The policies for a run whose conversation would continue with other code."""
ON_BODY_CHANGE: Final[tuple[OnBodyChange, ...]] = get_args(OnBodyChange)
Parts = Mapping[str, tuple[str, ...]]
DIGEST_LENGTH: Final = 32
ASKED: Final = ("agent", "prompt", "model", "settings", "output", "tool", "schema")
"""The first words of the names of parts that a conversation must not mix: the one who is asked, and what they are given."""
CONTEXT_FIELD: Final = "context field "
"""The prefix of a context model's fields among the parts of each step."""
_OWN_WORDS: Final = {"model of ": "model of ", "settings of ": "model settings of ", "output of ": "output schema of "}
_DATA: Final = ("prompt of ", "prompt file of ", "schema of ", CONTEXT_FIELD, *_OWN_WORDS)


@dataclass(frozen=True, slots=True)
class CodeMark:
    """The code versions that an attempt records: its step's, and those of its conversation, including its own."""

    version: str
    conversation: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitedCode:
    """The code that a parked run waits for."""

    path: str = ""
    """The step at which it waits for a worker whose code fits its conversation; empty if it waits for something else."""
    conversation: tuple[str, ...] = ()
    """The versions of that conversation."""
    attempt: str = ""
    """The key of the attempt whose context does not fit its model; empty if it waits for code."""

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"path": self.path, "conversation": list(self.conversation), "attempt": self.attempt}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> AwaitedCode:
        """Read it from a row."""
        return cls(tree["path"], tuple(tree["conversation"]), tree.get("attempt", ""))


@dataclass(frozen=True)
class CodeVersion:
    """Named parts, each with the digests it had, oldest first: one for a step, perhaps more for a conversation.

    `texts` shows people the parts of a step that are not functions, shortened: prompts, schemas, settings, types of context fields.
    """

    parts: Parts
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def digest(self) -> str:
        """Return what rows and messages call this version."""
        return digest({name: list(digests) for name, digests in sorted(self.parts.items())})[:DIGEST_LENGTH]

    @classmethod
    def of(cls, parts: Mapping[str, str], texts: Mapping[str, str] | None = None) -> CodeVersion:
        """Make the version of a step. A name may be any text, as a function's may."""
        readable = {storable_text(name): storable_text(text) for name, text in (texts or {}).items()}
        return cls({storable_text(name): (storable_text(value),) for name, value in parts.items()}, readable)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> CodeVersion:
        """Read a stored version."""
        return cls({str(name): tuple(map(str, digests)) for name, digests in tree.items()}, texts or {})

    def to_tree(self) -> dict[str, list[str]]:
        """Return the version as plain data."""
        return {name: list(digests) for name, digests in self.parts.items()}

    @property
    def asked(self) -> CodeVersion:
        """Return only the parts that a conversation must not mix."""
        return CodeVersion({name: digests for name, digests in self.parts.items() if name.partition(" ")[0] in ASKED})


def joined(versions: Iterable[CodeVersion]) -> CodeVersion:
    """Return one version with every digest that each part had."""
    parts: dict[str, dict[str, None]] = {}
    for version in versions:
        for name, digests in version.parts.items():
            parts.setdefault(name, {}).update(dict.fromkeys(digests))
    return CodeVersion({name: tuple(digests) for name, digests in parts.items()})


def changed(before: CodeVersion, now: CodeVersion) -> tuple[str, ...]:
    """Return the names of parts that `before` knows, and only with other digests, in alphabetical order."""
    known = ((name, before.parts.get(name)) for name in sorted(now.parts))
    return tuple(name for name, digests in known if digests and not set(now.parts[name]) <= set(digests))


def words_of(part: str) -> str:
    """Return what people call a part: of a function, its body."""
    if not part.startswith(_DATA):
        return f"body of {part}"
    return next((words + part.removeprefix(name) for name, words in _OWN_WORDS.items() if part.startswith(name)), part)


def context_fields(version: CodeVersion) -> CodeVersion:
    """Return only the fields of the context model."""
    names = [name for name in version.parts if name.startswith(CONTEXT_FIELD)]
    texts = {name: version.texts[name] for name in names if name in version.texts}
    return CodeVersion({name: version.parts[name] for name in names}, texts)


def changes_within_run(versions: Iterable[tuple[str, CodeVersion | None]]) -> dict[str, tuple[str, ...]]:
    """Return which parts changed where, over a run's attempts, in words.

    Args:
        versions: the attempts' keys in the order they ended, each with its version; None if that was not recorded.
    """
    latest: dict[str, tuple[str, ...]] = {}
    found: dict[str, tuple[str, ...]] = {}
    fields: set[str] = set()
    for key, version in versions:
        if version is None:
            continue
        differing = {name for name, now in version.parts.items() if latest.get(name, now) != now}
        if fields and (now_fields := set(context_fields(version).parts)):
            differing |= fields ^ now_fields
        fields = set(context_fields(version).parts) or fields
        if differing:
            found[key] = tuple(map(words_of, sorted(differing)))
        latest.update(version.parts)
    return found
