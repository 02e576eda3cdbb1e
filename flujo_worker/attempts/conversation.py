"""The conversation at a step, as stored in its context: turns of a conversation, answers of people.

It is written into the attempt's copy of the context, so it is merged once with its success or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from flujo_client.contract.context import ContextState, ConversationTurn, HumanInteraction, PipelineContext
from flujo_client.pipeline.compiled_text import Changes, Filling, current_filling
from flujo_client.pipeline.loop import DEFAULT_TEMPLATE, HITL, history_template_of
from flujo_client.recipes.agentic_protocol import record
from flujo_worker.agents.previews import hidden, written
from flujo_worker.domain.conversation import Rules, bounded, role_of
from flujo_worker.ports import Reply
from flujo_worker.runtime.attempt_run import History, Work, in_thread
from flujo_worker.runtime.question import checked, put
from flujo_worker.runtime.write_context import mark


async def history_of(work: Work, context: Any) -> History | None:
    """Render the conversation so far by the loop's rules, in a thread, because a long one would block the event loop.

    None outside of conversations and before the first turn. Names that are missing in a user's template are reported, or refused,
    as the settings say.
    """
    rules = work.conversation
    return None if rules is None else await in_thread(lambda: _history(context, rules))


def history_text(context: Any, rules: Rules) -> str | None:
    """Render the conversation so far; None before the first turn."""
    turns = list(_turns(context))
    filling = Filling() if rules["template"] == DEFAULT_TEMPLATE else current_filling.get()
    return _filled(turns, rules, filling) if turns else None


def _history(context: Any, rules: Rules) -> History | None:
    text = history_text(context, rules)
    return None if text is None else History(text, _filled(_shown(list(_turns(context)), rules), rules, Filling()))


def _shown(turns: Sequence[ConversationTurn], rules: Rules) -> list[ConversationTurn]:
    """Return the turns without secrets. The oldest of very many are not changed, because they exceed the token limit and are never sent."""
    begin = max(0, len(turns) - rules["management"]["max_tokens"] // 4)
    newest = [ConversationTurn(role=turn.role, content=_hidden(turn.content)) for turn in turns[begin:]]
    return [*turns[:begin], *newest]


def _filled(turns: Sequence[ConversationTurn], rules: Rules, filling: Filling) -> str:
    history = [{"role": turn.role, "content": turn.content} for turn in bounded(turns, rules["management"])]
    text: str = filling.fill(rules["template"], {"history": history}, as_text=True, read=history_template_of)
    return text.strip()


def _hidden(content: str) -> str:
    """Return a turn's content without its secrets: anything but text became JSON, in which their names are recognized."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = content
    return written(hidden(value))


def _turns(context: Any) -> Iterator[ConversationTurn]:
    """Yield the turns in a context; skip anything else in its list."""
    for each in _kept(context):
        given = each if isinstance(each, dict) else getattr(each, "__dict__", {})
        role, content = given.get("role"), given.get("content")
        if role in ("user", "assistant") and isinstance(content, str):
            yield ConversationTurn(role=role, content=content)


def record_turn(work: Work, output: Any, context: Any) -> Any:
    """Record a step's output as a turn, if it is one; a loop's own work is not a turn."""
    step, rules = work.step, work.conversation
    is_silent = isinstance(step.agent, Changes) or step.agent is record
    role = None if rules is None or is_silent else role_of(rules, step.name)
    if role is None:
        return context
    return _added(context, ConversationTurn(role=role, content=written(output), step=step.name))


def _answered(work: Work, context: Any, question: str, answer: Any) -> Any:
    """Record a question, unless it is the last turn already, and its answer; in a conversation only if people are among the user's sources."""
    sources = (HITL,) if work.conversation is None else work.conversation["users"]
    if HITL not in sources and work.step.name not in sources:
        return context
    newest = _kept(context)[-1:]
    is_recorded = bool(newest) and getattr(newest[0], "role", None) == "assistant" and newest[0].content == question
    asked = ConversationTurn(role="assistant", content=question)
    given = ConversationTurn(role="user", content=written(answer))
    return _added(context, asked, given, instead=int(is_recorded))


def remember(work: Work, context: Any, reply: Reply, output: Any) -> Any:
    """Record who answered what: the answer is stored whole."""
    answer = reply.answer
    question = str(reply.question["message"])
    if answer is not None and (work.conversation is not None or isinstance(context, PipelineContext)):
        context = _answered(work, context, question, output)
    if not isinstance(context, PipelineContext):
        return context
    done = HumanInteraction(step=work.step.name, question=question, answer=output)
    if answer is not None:
        done = done.model_copy(update={"actor": answer.actor, "note": answer.note, "at": answer.at})
    context.hitl_history = [*context.hitl_history, done]
    return context


def going_on(context: Any) -> Any:
    """Record in a context that it no longer waits for an answer."""
    if isinstance(context, PipelineContext):
        mark(context, ContextState.RUNNING, None)
    return context


def _added(context: Any, *turns: ConversationTurn, instead: int = 0) -> Any:
    """Append turns, if the context has a place for them; raises ContextMergeError where its model does not take them."""
    config = getattr(type(context), "model_config", {})
    if not hasattr(context, "conversation_history") and config.get("extra") != "allow":
        return context
    history = _kept(context)
    put(context, "conversation_history", [*history[: len(history) - instead], *turns])
    return context if config.get("validate_assignment") else checked(context)


def _kept(context: Any) -> list[Any]:
    """Return the entries of a context's history, of any kind; empty if it is not a list."""
    history = getattr(context, "conversation_history", None)
    return list(history) if isinstance(history, list | tuple) else []
