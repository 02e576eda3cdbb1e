"""A loop's conversation: whose messages are its turns, how many its agents receive, which are retained. Pure.

`attempts/conversation.py` writes turns into contexts and renders them. A token is taken to be 4 bytes of UTF-8: the same everywhere, with no
model's own counting.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from flujo_client.contract.context import ConversationTurn
from flujo_client.pipeline.loop import ALL_AGENTS, LAST, LEAST_TOKENS
from flujo_client.plan import kinds
from flujo_client.plan.plan import Node, Plan

Rules = Mapping[str, Any]

BYTES_PER_TOKEN: Final = 4
_LEAST_SHARE, _FRAME = 40, 20
"""Characters of a turn below which a summary rather leaves the oldest ones out, and what else is around them."""


def conversation_at(plan: Plan, address: str) -> Rules | None:
    """Find the conversation of the innermost loop around an address that has one."""
    above: str | None = address
    while above is not None:
        container, _, above = plan.locate(above)
        if container is not None and "conversation" in container.rules:
            found: Rules = container.rules["conversation"]
            return found
    return None


def is_revisited(plan: Plan, path: str) -> bool:
    """Return whether a step may run again with its earlier messages: it is in a loop or a state machine."""
    nodes, names = plan.nodes, path.split("/")
    for name, key in zip(names[:-1:2], names[1::2], strict=True):
        node = nodes.named(name)
        if node.spec.revisits:
            return True
        nodes = node.bodies[key]
    return False


def role_of(rules: Rules, step: str) -> Literal["user", "assistant"] | None:
    """Return the role of a step's output as a turn; None if it is not a turn."""
    if step in rules["users"]:
        return "user"
    return "assistant" if rules["ai"] in (LAST, ALL_AGENTS) or step in rules["steps"] else None


def steps_with_turns(loop: Node) -> frozenset[str]:
    """Return the names of the steps with turns in a loop's own conversation, without those of loops inside it."""
    return frozenset(node.name for nodes in loop.bodies.values() for node in _steps(nodes))


def _steps(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if node.spec is kinds.STEP:
            yield node
        elif "conversation" not in node.rules:
            for inner in node.bodies.values():
                yield from _steps(inner)


def keeps_last_turn(loop: Node) -> bool:
    """Return whether only the last of what agents say in an iteration is a turn."""
    return bool("conversation" in loop.rules and loop.rules["conversation"]["ai"] == LAST)


def settled(before: Sequence[Any], after: Sequence[Any], steps: Collection[str]) -> list[Any]:
    """Return an iteration's turns with the last message of these steps alone; all of them where turns from before were rewritten."""
    begin = len(before)
    if list(after[:begin]) != list(before):
        return list(after)
    turns = [place for place, turn in enumerate(after) if place >= begin and _is_turn_of(turn, steps)]
    left_out = set(turns[:-1])
    return [turn for place, turn in enumerate(after) if place not in left_out]


def _is_turn_of(turn: Any, steps: Collection[str]) -> bool:
    return isinstance(turn, ConversationTurn) and turn.role == "assistant" and turn.step in steps


def tokens_of(turn: ConversationTurn) -> int:
    """Estimate the tokens of a turn: those of its line of JSON."""
    line = json.dumps({"role": turn.role, "content": turn.content}, ensure_ascii=False) + "\n"
    return -(-len(line.encode(errors="replace")) // BYTES_PER_TOKEN)


def bounded(turns: Sequence[ConversationTurn], management: Rules) -> list[ConversationTurn]:
    """Return the part of a conversation that is sent: never more than `max_tokens`, in order, the newest turn always among it."""
    most, strategy = management["max_tokens"], management["strategy"]
    if strategy == "truncate_turns":
        turns = turns[-management["max_turns"] :]
    fitting = _newest(turns, most)
    if strategy != "summarize" or len(fitting) == len(turns):
        return fitting
    room = int(most * management["summarize_ratio"])
    kept = _newest(turns, max(LEAST_TOKENS, most - room))
    left = min(room, most - sum(map(tokens_of, kept)))
    return [*_summary(turns[: -len(kept)], left), *kept]


def _newest(turns: Sequence[ConversationTurn], most: int) -> list[ConversationTurn]:
    """Return the newest turns that fit together; a newest one that does not fit alone is cut."""
    kept: list[ConversationTurn] = []
    left = most
    for turn in reversed(turns):
        left -= tokens_of(turn)
        if left < 0:
            break
        kept.append(turn)
    return kept[::-1] if kept or not turns else [_cut(turns[-1], most)]


def _cut(turn: ConversationTurn, most: int) -> ConversationTurn:
    """Cut a turn to as much of its beginning as fits; at `LEAST_TOKENS` that is at least the mark that it was cut."""
    sizes = range(1, min(len(turn.content), most * BYTES_PER_TOKEN) + 1)
    return _first(turn, bisect(sizes, most, key=lambda size: tokens_of(_first(turn, size))))


def _first(turn: ConversationTurn, characters: int) -> ConversationTurn:
    return turn.model_copy(update={"content": f"{turn.content[:characters]}…"})


def _summary(older: Sequence[ConversationTurn], most: int) -> list[ConversationTurn]:
    """Summarize older turns as one, each by its beginning; the newest of them if there is no space for all."""
    if most < LEAST_TOKENS:
        return []
    head = ConversationTurn(role="assistant", content=f"Summary of {len(older)} earlier turns, each cut short:")
    room = (most - tokens_of(head)) * BYTES_PER_TOKEN
    recent = older[-max(1, room // _LEAST_SHARE) :]
    share = max(1, room // len(recent) - _FRAME)
    lines = [f"{turn.role}: {_short(turn.content, share)}" for turn in recent]
    summary = ConversationTurn(role="assistant", content="\n".join([head.content, *lines]))
    return [summary if tokens_of(summary) <= most else _cut(summary, most)]


def _short(text: str, most: int) -> str:
    """Return a text's beginning on one line: several lines could pass for another speaker's turn."""
    line = " ".join(text[: most + 1].split())
    return line if len(text) <= most else f"{line[:most]}…"
