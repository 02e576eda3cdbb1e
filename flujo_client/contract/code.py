"""The code that a step was performed with: a digest for each function, prompt, tool and model setting, by name; how two differ. Pure.

A plan's fingerprint leaves these out, so a worker records them with each attempt. They are content-addressed: an attempt and a
conversation name a `CodeVersion` by its digest, and each version is stored once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from flujo_client.plan.plan import Nodes, Plan
from flujo_client.plan.plan_difference import LONGEST, Difference, What, differences
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
    """The step at which the run waits for a worker whose code fits its conversation; empty if the run waits for something else."""
    conversation: tuple[str, ...] = ()
    """The versions of that conversation."""
    attempt: str = ""
    """The key of the attempt whose context does not fit its model; empty if the run waits for code."""

    def to_tree(self) -> dict[str, Any]:
        return {"path": self.path, "conversation": list(self.conversation), "attempt": self.attempt}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> AwaitedCode:
        return cls(tree["path"], tuple(tree["conversation"]), tree.get("attempt", ""))


class ParkCause(NamedTuple):
    """Why a run is parked."""

    kind: Literal["import", "code", "newer", "pinned", "key", "conversation"]
    """Code that cannot be loaded; code that has changed, is newer than the workers, or has changed and the run is pinned to the old one; a
    key of values; a conversation that was held with other code."""
    what: str = ""
    """What that is: the error, the changes, the plan's fingerprint, or the key's id; empty if the reason in words is all that is known."""


CODE_CHANGED: Final = ParkCause("code")


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
        return cls({str(name): tuple(map(str, digests)) for name, digests in tree.items()}, texts or {})

    def to_tree(self) -> dict[str, list[str]]:
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

    The attempts are in the order they ended, each with its version, or None if its version was not recorded.
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


MOST_LINES, MOST_CHARACTERS = 20, 200
_NUMBER: Final = re.compile("#[^/]+")
_OUTPUT: Final = "agent.output"
_IN_PLANS: Final = {"prompt of ": "agent.prompt", "model of ": "agent.model", "output of ": _OUTPUT}
"""Parts that plans have something of as well, and what plans call it."""
_COMES_AND_GOES: Final = ("tool ", "schema of ", "prompt", CONTEXT_FIELD)
"""Parts that may be added or removed. If another function becomes the agent or the condition, the plans differ too."""
_SUMMARY: Final = "agent.made_of"


class StepVersion(NamedTuple):
    """The version of code that a run's step was last performed with; in its address each number of a child is 0."""

    address: str
    step: str
    version: CodeVersion


@dataclass(frozen=True, slots=True)
class CodeOnRecord:
    """The recorded versions of code."""

    run: Sequence[StepVersion] = ()
    """The versions of the code that ran a run's steps, the latest last."""
    old: Mapping[str, CodeVersion] = field(default_factory=dict)
    """The versions that workers had when they last loaded the run's plan, by the path of the step."""
    new: Mapping[str, CodeVersion] = field(default_factory=dict)
    """The versions of the plan to compare with, by the path of the step."""

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> CodeOnRecord:
        """Read the rows of `code_on_record.sql`."""
        run: list[StepVersion] = []
        plans: dict[str, dict[str, CodeVersion]] = {"old": {}, "new": {}}
        for row in rows:
            version = CodeVersion.from_tree(row["parts"], row["texts"])
            if row["origin"] == "run":
                run.append(StepVersion(row["place"], row["step"], version))
            else:
                plans[row["origin"]][row["place"]] = version
        return cls(tuple(run), **plans)


def without_numbers(address: str) -> str:
    """Return an address with the number of each child replaced by 0: what the steps of all of them have in common."""
    return _NUMBER.sub("#0", address)


def all_differences(old: Plan, new: Plan, code: CodeOnRecord) -> tuple[Difference, ...]:
    """Return all that differs: between the plans, and then between the code of the steps that both have."""
    of_code = {(each.step, each.aspect): each for each in _of_code(old, new, code)}
    found = []
    for each in differences(old, new):
        same = of_code.pop((each.step, each.aspect), None)
        is_summary = each.aspect == _SUMMARY and any(step == each.step for step, _ in of_code)
        if not is_summary:
            shown = each if same is None or each.old else same
            found.append(replace(each, old=shown.old, new=shown.new, lines=shown.lines))
    left = (replace(each, aspect="output schema") if each.aspect == _OUTPUT else each for each in of_code.values())
    return (*found, *left)


def _of_code(old: Plan, new: Plan, code: CodeOnRecord) -> Iterator[Difference]:
    before = dict(code.old) | dict(_performed(old, code.run))
    places = dict(_places(old.nodes, "", ()))
    versions = (*code.old.values(), *(each.version for each in code.run))
    fields = [found for version in versions if (found := context_fields(version)).parts]
    now = next((found for version in code.new.values() if (found := context_fields(version)).parts), None)
    if fields and now is not None and old.context_model == new.context_model:
        yield from _of_parts(fields[-1], now, Difference("changed", "making"))
    for path, around in places.items():
        if path in before and path in code.new:
            here = Difference("changed", "making", path, around[-1][1], around)
            yield from _of_parts(_own(before[path]), _own(code.new[path]), here)


def _performed(plan: Plan, run: Iterable[StepVersion]) -> Iterator[tuple[str, CodeVersion]]:
    """Find the paths of steps in the plan; one from before the run came under it, under another name, has none."""
    for address, step, version in run:
        with suppress(KeyError):
            yield plan.node(address, step).path, version


def _places(
    nodes: Nodes, path: str, above: tuple[tuple[str, int], ...]
) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
    for place, node in enumerate(nodes):
        around = (*above, (path, place))
        yield node.path, around
        for key, body in node.bodies.items():
            yield from _places(body, f"{node.path}/{key}", around)


def _own(version: CodeVersion) -> CodeVersion:
    parts = {name: each for name, each in version.parts.items() if not name.startswith(CONTEXT_FIELD)}
    return CodeVersion(parts, version.texts)


def _of_parts(before: CodeVersion, now: CodeVersion, here: Difference) -> Iterator[Difference]:
    for name in sorted(before.parts.keys() | now.parts.keys()):
        was, is_now = before.parts.get(name), now.parts.get(name)
        if was == is_now or (None in (was, is_now) and not name.startswith(_COMES_AND_GOES)):
            continue
        what: What = "added" if was is None else "removed" if is_now is None else "changed"
        old, new, lines = _shown(name, before, now)
        yield replace(here, what=what, aspect=_aspect(name, here.step), old=old, new=new, lines=lines)


def _aspect(name: str, step: str) -> str:
    at = f" of step '{step}'"
    for kind, aspect in _IN_PLANS.items():
        if name == f"{kind[:-4]}{at}":
            return aspect
    return words_of(name).replace(at, "")


def _shown(name: str, before: CodeVersion, now: CodeVersion) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return two values that are short, or a diff of two texts."""
    old, new = before.texts.get(name), now.texts.get(name)
    if all(each is None or (len(each) <= LONGEST and "\n" not in each) for each in (old, new)):
        written = str if name.startswith(CONTEXT_FIELD) else repr
        return old and written(old), new and written(new), ()
    if old is None or new is None:
        return None, None, ()
    changed = islice(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1), 2, None)
    lines = [line[:MOST_CHARACTERS] for line in changed if not line.startswith("@@")]
    more = len(lines) - MOST_LINES
    return None, None, (*lines[:MOST_LINES], *([f"and {more} more lines"] if more > 0 else []))
