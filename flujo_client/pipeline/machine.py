"""State machines: pipelines as states, and what leads from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flujo_client.pipeline.authoring import under
from flujo_client.pipeline.container import Container, count_findings, function_findings, names_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.function_code import signature_of
from flujo_client.pipeline.pipeline import Body
from flujo_client.plan import kinds

ANY = "*"
ENDINGS = ("success", "failure", "pause")
NO_WAITING = ("failure", "pause")
"""The endings at which conditions cannot ask a person: nothing has begun after the state that the run could wait at."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition from one state to the next.

    Args:
        from_state: the state that ended, or `*` for any; `from` in a mapping.
        to: the next state.
        on: how the state ended: `success`, `failure` or `pause`.
        when: `(output, context) -> bool`, sync or async; always true when None.
    """

    from_state: str
    to: str
    on: str = "success"
    when: Callable[..., Any] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StateMachineStep(Container):
    """Run states one after the other until an end state.

    Args:
        states: what each state runs, by name.
        start_state: the first state.
        end_states: where the machine ends: a state, which runs last, or a name that runs nothing.
        transitions: `Transition`s, or mappings of `from`, `to`, `on` and `when`; the first match is taken.
        max_visits: maximum visits to states in all.
    """

    spec = kinds.MACHINE

    states: Mapping[str, Body]
    start_state: str
    end_states: Sequence[str]
    transitions: Sequence[Transition | Mapping[str, Any]]
    max_visits: int = 100

    def bodies(self) -> dict[str, Body]:
        states: Any = self.states
        return {str(name): body for name, body in states.items()} if isinstance(states, Mapping) else {}

    def rules(self) -> dict[str, Any]:
        return super().rules() | {
            "start": self.start_state,
            "ends": sorted(self.end_states),
            "transitions": [each | {"when": each["when"] is not None} for each in self._transitions()],
            "max_visits": self.max_visits,
        }

    def functions(self) -> dict[str, Any]:
        """Return the conditions by the index of their transition: `functions()["when"][index]`."""
        when = {index: each["when"] for index, each in enumerate(self._transitions()) if each["when"] is not None}
        return {"when": when} if when else {}

    def when(self, index: int) -> Callable[..., Any]:
        """Return the condition of a transition that has one."""
        function: Callable[..., Any] = self.functions()["when"][index]
        return function

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        yield from under("V-SM1", self._state_findings())

    def _state_findings(self) -> Iterator[str]:
        yield from count_findings("max_visits", self.max_visits)
        if not self.bodies():
            yield f"states must be a mapping that is not empty, got a {type(self.states).__name__}"
        yield from names_findings("state", self.bodies())
        yield from _unknown("start_state", [self.start_state], self.bodies())
        for name in ("end_states", "transitions"):
            if not isinstance(getattr(self, name), list | tuple | set | frozenset):
                yield f"{name}, a {type(getattr(self, name)).__name__}, is not a list"
        reached = {str(each["to"]) for each in self._transitions()}
        yield from _unknown("end_states", _listed(self.end_states), {*self.bodies(), *reached})
        yield from names_findings("end state", (name for name in self._ends() if name not in self.bodies()))
        for index, given in enumerate(_listed(self.transitions)):
            yield from (f"transition {index}: {text}" for text in self._transition_findings(given))

    def _transition_findings(self, given: Any) -> Iterator[str]:
        if not isinstance(given, Transition | Mapping):
            yield f"must be a Transition or a mapping, got a {type(given).__name__}"
            return
        each = _read(given)
        for key in each.keys() - _UNSAID.keys():
            yield f"'{str(key)[:40]}' must be one of from, on, to, when"
        yield from _unknown("from", [each["from"]], {ANY, *self.bodies()})
        yield from _unknown("to", [each["to"]], {*self.bodies(), *self._ends()})
        if each["on"] not in ENDINGS:
            yield f"on {str(each['on'])[:40]!r} must be one of {', '.join(ENDINGS)}"
        if each["when"] is not None:
            yield from function_findings("when", each["when"], "output, context")
            signature = signature_of(each["when"])
            if each["on"] in NO_WAITING and signature is not None and "resume_input" in signature.parameters:
                yield f"its `when` takes `resume_input` to ask a person, but a run cannot wait for one at `on: {each['on']}`; ask in a step of the state that it leads to, or at `on: success`"

    def _transitions(self) -> list[dict[str, Any]]:
        return [_read(each) for each in _listed(self.transitions)]

    def _ends(self) -> list[str]:
        return [name for name in _listed(self.end_states) if isinstance(name, str)]


_UNSAID = {"from": None, "to": None, "on": "success", "when": None}


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple | set | frozenset) else []


def _unknown(what: str, names: Iterable[Any], known: Collection[str]) -> Iterator[str]:
    for name in names:
        if not isinstance(name, str) or name not in known:
            yield f"{what} {str(name)[:40]!r} is not a state"


def _read(given: Any) -> dict[str, Any]:
    if isinstance(given, Transition):
        return {"from": given.from_state, "to": given.to, "on": given.on, "when": given.when}
    return _UNSAID | (dict(given) if isinstance(given, Mapping) else {})
