"""Describe the differences between two plans of one pipeline. Pure. In: two plans. Out: their differences, in the order of the old plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Final, Literal

from flujo_client.plan.plan import Node, Nodes, Plan

What = Literal["added", "removed", "renamed", "moved", "changed"]
Effect = Literal["option", "making", "result", "structure"]
"""What a difference affects: how attempts are carried out; how a result is made; the result and where it goes; or which steps there are."""

_OPTIONS: Final = frozenset({"max_attempts", "backoff", "queue", "meta", "config", "usage_limits", "limit", "message"})
_MODEL_OPTIONS: Final = frozenset({"config.temperature", "config.top_k", "config.top_p", "config.max_tokens"})
_RESULTS: Final = frozenset({"agent.output", "sink_to", "updates_context", "validate_fields", "input_schema", "rules"})
_BOUNDS: Final = frozenset({"max_loops", "max_visits", "max_concurrency", "expires_s", "on_expiry", "escalate_to"})
_WORDS: Final = {
    "max_attempts": "number of attempts",
    "agent.prompt": "prompt",
    "agent.made_of": "prompt, output schema, settings or tools of the agent",
    "agent.output": "output type",
    "agent.model": "model",
    "config.timeout_s": "timeout",
    "context_model": "context model",
}
LONGEST: Final = 60
"""Characters of the longest value that is shown whole."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two plans."""

    what: What
    """The change of the step, or of its branch, path or state `key`."""
    effect: Effect
    step: str = ""
    """The step's path in the old plan; in the new one if it was added; empty for the pipeline as a whole."""
    place: int = 0
    """The place of the step in its body in the old plan; an added step is in front of that place."""
    around: tuple[tuple[str, int], ...] = ()
    """The bodies around the step, outermost first: the path of each, and the place in it."""
    key: str | None = None
    aspect: str = ""
    """The changed property, as a dotted path of the plan."""
    old: str | None = None
    new: str | None = None
    """`old`, `new`: the values if they are short, else the names."""
    lines: tuple[str, ...] = ()
    """The change of a longer text, as a shortened diff."""

    @property
    def body(self) -> str:
        """Return the path of the body it is in."""
        return self.around[-1][0] if self.around else ""

    def __str__(self) -> str:
        where = f"step '{self.step}'" if self.step else "the pipeline"
        if self.key is not None:
            return f"{where}: '{self.key}' was {self.what}"
        if self.what == "renamed":
            return f"{where} was renamed to '{self.new}'"
        if not self.aspect:
            return f"{where} was {self.what}"
        aspect, shown = _WORDS.get(self.aspect, self.aspect), self.old or self.new
        if self.what != "changed":
            return f"{where}: {aspect} was {self.what}{f' ({shown})' if shown else ''}"
        values = f" from {self.old} to {self.new}" if self.old is not None and self.new is not None else ""
        return f"{where}: {aspect} changed{values}"


def differences(old: Plan, new: Plan) -> tuple[Difference, ...]:
    """Return all that differs between two plans of one pipeline; nothing for equal ones."""
    return (*_of_pipeline(old, new), *_of_bodies(old.nodes, new.nodes, "", ()))


def _of_pipeline(old: Plan, new: Plan) -> Iterator[Difference]:
    effects: dict[str, Effect] = {"context_model": "result", "resources": "making"}
    before, after = old.to_tree(), new.to_tree()
    for aspect in ("name", "version", "on_change", "hooks", "invariants", "run_limits", "resources", "context_model"):
        if before.get(aspect) != after.get(aspect):
            yield _changed(aspect, before.get(aspect), after.get(aspect), effects.get(aspect, "option"))


def _of_bodies(old: Nodes, new: Nodes, path: str, above: tuple[tuple[str, int], ...]) -> Iterator[Difference]:
    was, now = [node.name for node in old], [node.name for node in new]
    moved = _moved(was, now)

    def found(what: What, node: Node, place: int, name: str | None = None) -> Difference:
        return Difference(what, "structure", node.path, place, (*above, (path, place)), new=name)

    for tag, start, end, first, last in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag == "equal":
            for place, each in zip(range(start, end), new[first:last], strict=True):
                yield from _of_node(old[place], each, place, (*above, (path, place)))
            continue
        gone = [place for place in range(start, end) if was[place] not in moved]
        came = [place for place in range(first, last) if now[place] not in moved]
        for place in list(gone):
            renamed = old[place].to_tree()
            same = next((each for each in came if new[each].to_tree() == renamed | {"name": new[each].name}), None)
            if same is not None:
                gone.remove(place)
                came.remove(same)
                yield found("renamed", old[place], place, new[same].name)
        yield from (found("removed", old[place], place) for place in gone)
        yield from (found("added", new[each], start) for each in came)
    for name in moved:
        place, target = was.index(name), now.index(name)
        yield found("moved", old[place], min(place, target))
        yield from _of_node(old[place], new[target], place, (*above, (path, place)))


def _moved(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return the names that are in both, but not in one order with the rest."""
    kept: set[str] = set()
    for start, _, size in SequenceMatcher(None, was, now, autojunk=False).get_matching_blocks():
        kept.update(was[start : start + size])
    return [name for name in was if name in set(now) and name not in kept]


def _of_node(old: Node, new: Node, place: int, around: tuple[tuple[str, int], ...]) -> Iterator[Difference]:
    def here(difference: Difference) -> Difference:
        return replace(difference, step=old.path, place=place, around=around)

    if old.kind != new.kind:
        yield here(_changed("kind", old.kind, new.kind, "structure"))
        return
    before, after = _facts(old), _facts(new)
    for aspect in sorted(before.keys() | after.keys()):
        if before.get(aspect) != after.get(aspect):
            yield here(_changed(aspect, before.get(aspect), after.get(aspect), _effect(aspect)))
    yield from map(here, _of_keys(old, new))
    for key in (key for key in old.bodies if key in new.bodies):
        yield from _of_bodies(old.bodies[key], new.bodies[key], f"{old.path}/{key}", around)


def _of_keys(old: Node, new: Node) -> Iterator[Difference]:
    was, now = list(old.bodies), list(new.bodies)
    yield from (Difference("removed", "structure", key=key) for key in was if key not in now)
    yield from (Difference("added", "structure", key=key) for key in now if key not in was)
    yield from (Difference("moved", "structure", key=key) for key in _moved(was, now))


def _facts(node: Node) -> dict[str, Any]:
    """Return what a plan says of a node itself, flat."""
    rules = {name: rule for name, rule in node.rules.items() if name != "keys"}  # those of its bodies
    tree = replace(node, rules={}, bodies={}, traits={}).to_tree()
    return dict(_flat({**tree, **node.traits, "rules": rules}))


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _effect(aspect: str) -> Effect:
    first = aspect.partition(".")[0]
    if aspect in _RESULTS or (first in _RESULTS and aspect.removeprefix("rules.") not in _BOUNDS):
        return "result"
    return "option" if first in _OPTIONS and aspect not in _MODEL_OPTIONS else "making"


def _changed(aspect: str, old: Any, new: Any, effect: Effect) -> Difference:
    shown, now = _shown(aspect, old), _shown(aspect, new)
    if shown is None or now is None:
        shown = now = None
    return Difference("changed", effect, aspect=aspect, old=shown, new=now)


def _shown(aspect: str, value: Any) -> str | None:
    """Return a value for people; None for one that would not say anything: a digest, or what is long."""
    if aspect in ("agent.prompt", "agent.made_of") or (value is not None and not isinstance(value, str | int | float)):
        return None
    text = "none" if value is None else repr(value)
    return text if len(text) <= LONGEST else None
