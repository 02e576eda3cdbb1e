"""The base of all containers: steps that run other steps and have no agent.

A container describes itself for the plan and the check (`bodies`, `rules`, `functions`, `findings`), so that plan and check recurse without
knowing the kinds. It must not decide anything about a run: that is the workers' part.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from flujo_client.address import is_name
from flujo_client.contract.limits import Limit, UsageLimits
from flujo_client.pipeline.authoring import is_mock
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig
from flujo_client.sizes import MAX_BRANCHES, MAX_NAME

MOST = 1_000_000_000
"""The largest count that a plan holds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Container(Step):
    """A step that runs others.

    Options of agents belong to the steps inside, and are not accepted here. A `config` only sets the mode in which the container itself
    runs.
    """

    roles: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """The fields that hold user functions, by role, each with the function's documented arguments."""

    agent: Any = field(default=None, init=False)
    config: StepConfig = field(default_factory=StepConfig)
    plugins: Sequence[Any] = field(default=(), init=False)
    validators: Sequence[Any] = field(default=(), init=False)
    updates_context: bool = field(default=False, init=False)
    sink_to: str | None = field(default=None, init=False)
    validate_fields: bool = field(default=False, init=False)
    strict_validation: bool = field(default=True, init=False)
    queue: str | None = field(default=None, init=False)
    meta: dict[str, Any] = field(default_factory=dict)
    processing: Mapping[str, Any] | None = field(default=None, init=False)
    processors: AgentProcessors = field(default_factory=AgentProcessors, init=False)
    fallback_step: Step | None = None
    usage_limits: UsageLimits | None = None
    input: str | None = field(default=None, init=False)
    static_invariants: Sequence[Any] = field(default=(), init=False)
    limit: Limit | None = field(default=None, init=False)

    def rules(self) -> dict[str, Any]:
        return {"functions": sorted(self.functions())}

    def functions(self) -> dict[str, Any]:
        given = {role: getattr(self, name) for role, (name, _) in self.roles.items()}
        return {role: function for role, function in given.items() if function is not None}

    def findings(self, place: ContextInfo) -> Iterator[str]:  # noqa: ARG002 - what subclasses are asked about
        if not self.performs and self.config not in (StepConfig(), StepConfig(execution_mode="background")):
            yield "a container's config may only set execution_mode; everything else belongs on the steps inside"
        optional = {each.name for each in fields(self) if each.default is None}
        for name, called_with in self.roles.values():
            given = getattr(self, name)
            if given is not None or name not in optional:
                yield from function_findings(name, given, called_with)


def function_findings(name: str, given: Any, called_with: str | None = None) -> Iterator[str]:
    """Find what is wrong with a user function, sync or async, that is given as the option `name`.

    `called_with` are its positional arguments, such as `output, context`; if None, its parameters are not examined.
    """
    if is_mock(given):
        yield f"{name} is a mock, which no worker can rebuild"
    elif not callable(given):
        yield f"{name}, a {type(given).__name__}, is not callable"
    elif called_with is not None:
        yield from _call_findings(name, given, called_with)


def takes_answer(function: Any) -> bool:
    """Return whether a function may ask a person, whose answer it takes as `resume_input`."""
    try:
        return "resume_input" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions hide their parameters
        return False


def _call_findings(name: str, given: Callable[..., Any], called_with: str) -> Iterator[str]:
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # compiled functions hide their parameters
        return
    beside = {_OWN_INPUT: None} if _OWN_INPUT in signature.parameters else {}
    given_by_place = called_with.split(", ")
    others = [given_by_place[0], *(each for each in given_by_place[1:] if each != _CONTEXT)]
    if not (
        _can_bind(signature, given_by_place, beside)
        or _can_bind(signature, others, {_CONTEXT: None, **beside})
        or _can_bind(signature, others, beside)
    ):
        yield f"{name} is called with ({called_with}), but takes {str(signature)[:80]}"


def _can_bind(signature: inspect.Signature, by_place: Sequence[str], by_name: Mapping[str, None]) -> bool:
    try:
        signature.bind(*by_place, **by_name)
    except TypeError:
        return False
    return True


_OWN_INPUT = "original_input"
"""The additional argument of functions that have a parameter of that name."""
_CONTEXT = "context"


def count_findings(name: str, given: Any) -> Iterator[str]:
    """Find what is wrong with a count, which begins at 1."""
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= MOST:
        yield f"{name} must be a whole number from 1 to {MOST:,}, got {str(given)[:40]}"


def names_findings(what: str, names: Iterable[Any]) -> Iterator[str]:
    """Find what is wrong with the names of bodies, as they are written: they become parts of addresses."""
    names = list(names)
    if len(names) > MAX_BRANCHES:
        yield f"it has {len(names):,} of them, at most {MAX_BRANCHES:,} are allowed as a {what}; loop or map over parts of them"
    for name, count in Counter(str(name) for name in names).items():
        if not is_name(name):
            yield (
                f"{what} {name[:40]!r}: a name must have 1 to {MAX_NAME} characters, none of them '/', ':', '#' or a control "
                "character, no space at its ends"
            )
        if count > 1:
            yield f"{what} '{name}': {count} of them have this name; names are addresses and must be unique"


T = TypeVar("T", bound=type)


def aliases(**names: str) -> Callable[[T], T]:
    """Let fields be set and read under other names too: `aliases(body="loop_body_pipeline")`.

    The class raises TypeError if a field is set under both its names.
    """

    def change(cls: T) -> T:
        first = cls.__init__  # type: ignore[misc]  # the class's own, which the names are put before

        @wraps(first)
        def init(self: Any, *args: Any, **given: Any) -> None:
            for other in names.keys() & given.keys():
                if names[other] in given:
                    raise TypeError(f"{cls.__name__} was given both '{names[other]}' and its alias '{other}'")
                given[names[other]] = given.pop(other)
            first(self, *args, **given)

        cls.__init__ = init  # type: ignore[misc]
        for other, name in names.items():
            setattr(cls, other, property(attrgetter(name), doc=f"An alias of `{name}`."))
        return cls

    return change
