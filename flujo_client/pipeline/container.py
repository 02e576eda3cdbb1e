"""The base of all containers: steps that run other steps and have no agent, and describe themselves for the plan and the check."""

from __future__ import annotations

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
from flujo_client.pipeline.function_code import can_call, signature_of
from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig
from flujo_client.sizes import MAX_BRANCHES, MAX_NAME

MOST = 1_000_000_000
"""The largest count that a plan holds."""
_OWN_INPUT = "original_input"
"""The additional argument of functions that have a parameter of that name."""
NAME_RULE = f"a name must have 1 to {MAX_NAME} characters, none of them '/', ':', '#' or a control character, no space at its ends"


@dataclass(frozen=True, eq=False, kw_only=True)
class Container(Step):
    """A step that runs others. Options of agents belong to the steps inside; a `config` only sets the mode in which the container itself runs."""

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


def function_findings(name: str, given: Any, called_with: str) -> Iterator[str]:
    """Find what is wrong with a user function that is given as the option `name` and is `called_with` arguments, such as `output, context`."""
    if is_mock(given):
        yield f"{name} is a mock, which no worker can rebuild"
        return
    if not callable(given):
        yield f"{name}, a {type(given).__name__}, is not callable"
        return
    signature = signature_of(given)
    if signature is None:
        return
    beside = {_OWN_INPUT: None} if _OWN_INPUT in signature.parameters else {}
    all_by_place = called_with.split(", ")
    others = [each for index, each in enumerate(all_by_place) if each != "context" or index == 0]
    if not (
        can_call(signature, *all_by_place, **beside)
        or can_call(signature, *others, context=None, **beside)
        or can_call(signature, *others, **beside)
    ):
        yield f"{name} is called with ({called_with}), but takes {str(signature)[:80]}"


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
            yield f"{what} {name[:40]!r}: {NAME_RULE}"
        if count > 1:
            yield f"{what} '{name}': {count} of them have this name; names are addresses and must be unique"


T = TypeVar("T", bound=type)


def aliases(**names: str) -> Callable[[T], T]:
    """Let fields be set and read under other names too: `aliases(body="loop_body_pipeline")`; setting both raises TypeError."""

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
