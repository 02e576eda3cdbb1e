"""Decide how user code is called: an option without a parameter is left out instead of breaking the call (FSD-11).

It must not call anything, import an agent library or change an option. Signatures are slow to read, so each is read once and cached as long as its
function lives. The key is the function behind a bound method, because a bound method is a new object on every access; the class that owns it does
not change its parameters. Objects without weak references are referenced strongly, up to a limit, so that an id is never used again while it is a key.
"""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import zip_longest
from threading import Lock
from types import FunctionType, MethodType
from typing import Any, Final, Literal, NamedTuple

from flujo_client.errors import ConfigurationError

MAX_STRONG = 256
MAX_WRAPPERS = 64

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# Compiled wrappers: they hide their parameters and pass on all arguments.
_PASSES_ON = (staticmethod, type(lru_cache(abs)))
_NONE: frozenset[str] = frozenset()

CONTEXT: Final = object()
"""Stands for the context among the arguments of `arranged`, at its place in the documented order."""
_CONTEXT_NAME: Final = "context"
_OTHER_NAMES: Final = frozenset({"resources", "deps", "original_input", "resume_input"})
"""Parameters with these names receive their own value, never the context by its place."""


@dataclass(frozen=True)
class Keywords:
    """The keyword arguments of a callable: `named`, any other name if `others`, never those already `taken`.

    `positional` has, for each positional argument, the names that it fills, and `expects`, whether it can be meant for the context; `more`
    says whether further ones are accepted.
    """

    positional: tuple[frozenset[str], ...] = ()
    expects: tuple[bool, ...] = ()
    more: bool = False
    named: frozenset[str] = _NONE
    others: bool = False
    taken: frozenset[str] = _NONE

    def accept(self, name: str) -> bool:
        return name not in self.taken and (self.others or name in self.named)

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the options that are accepted; one that is None is not set."""
        return {name: value for name, value in options.items() if value is not None and self.accept(name)}

    def after(self, count: int, keywords: frozenset[str] = _NONE) -> Keywords:
        """Return what is left once `count` positional arguments and these keywords are given."""
        taken = self.taken.union(keywords, *self.positional[:count])
        return replace(self, positional=self.positional[count:], expects=self.expects[count:], taken=taken)

    def style_of_context(self) -> Literal["place", "name"] | None:
        """Return how the context is passed as the next argument: its name counts most, then its place; None where it is not taken."""
        names = self.positional[0] if self.positional else _NONE
        if _CONTEXT_NAME in self.named and self.accept(_CONTEXT_NAME):
            return "place" if _CONTEXT_NAME in names else "name"
        if self.expects and self.expects[0] and not names & (self.taken | _OTHER_NAMES):
            return "place"
        if self.accept(_CONTEXT_NAME):
            return "name"
        return "place" if self.more and not self.positional else None

    def _expects(self, place: int) -> bool:
        return self.expects[place] if place < len(self.expects) else self.more

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no keyword is accepted."""
        return not self.others and self.named <= self.taken

    @cached_property
    def after_one(self) -> Keywords:
        """Return `after(1)`, cached: every call to an agent needs it for `self` and again for the data."""
        return self.after(1)

    def within(self, inner: Keywords) -> Keywords:
        """Return what passes through this layer and the one it wraps."""
        return Keywords(
            positional=tuple(a | b for a, b in zip_longest(self.positional, inner.positional, fillvalue=_NONE)),
            expects=tuple(
                self._expects(place) and inner._expects(place)
                for place in range(max(len(self.expects), len(inner.expects)))
            ),
            more=self.more and inner.more,
            named=frozenset(name for name in self.named | inner.named if self.accept(name) and inner.accept(name)),
            others=self.others and inner.others,
            taken=self.taken | inner.taken,
        )


_UNKNOWN = Keywords()


class Callee(NamedTuple):
    """An agent, and how it is called: found out once for all calls."""

    agent: Any
    run: Any
    is_object: bool
    """It has a `run`, so it may act otherwise next time; a plain function does not count."""
    is_library: bool
    """It is the library's own, and `is_task` a Celery task; `is_async`: a call of it is awaited, and needs no thread."""
    is_task: bool
    is_async: bool
    asks: bool
    """It asks its model through the library, and `may_ask`, it may have a model at all."""
    may_ask: bool
    takes: Keywords
    deps_type: Any

    @property
    def takes_context(self) -> bool:
        """Return whether it may be given the context: by name, or as its deps."""
        return self.deps_type is not None or self.takes.accept("context")


def accepts_param(func: Callable[..., Any], param: str) -> bool:
    """Return whether `func` can be given `param` as a keyword.

    False if the parameter is positional-only, if a partial has fixed it already, if any layer of a `functools.wraps`
    chain would refuse it, or if the signature cannot be determined.
    """
    return _keywords(func).accept(param)


def accepted_kwargs(agent: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the options that the agent finally called accepts.

    An option that is None is not set and never passed. The agent's first positional parameter receives the data, so an option of that name
    is left out. Raises ConfigurationError: wrappers that declare each other as `__flujo_target__`.
    """
    return keywords_of(agent).chosen(options)


def keywords_of(agent: Any) -> Keywords:
    """Return the keywords that an agent takes beside its data. Raises what `accepted_kwargs` raises."""
    return _parameters(unwrap(agent)).after_one


def arranged(
    function: Any, given: Sequence[Any], *, context: Callable[[], Any], options: Mapping[str, Any]
) -> partial[Any]:
    """Return the call of a user's function, ready to be made: processors, validators, plugins, conditions and mappers are all called so.

    The context goes to the parameter named `context`, else to the parameter at its place if that has no default, or None as default; a
    function with neither is called without it.

    Args:
        function: the function.
        given: its arguments by place; `CONTEXT` stands for the context.
        context: returns the context, or None where there is none; called only for a function that takes it.
        options: values by name, for functions that have such a parameter.
    """
    parameters = _parameters(unwrap(function))
    arguments, named = list(given), {}
    place = next((index for index, each in enumerate(given) if each is CONTEXT), None)
    if place is not None:
        style = parameters.after(place).style_of_context()
        value = None if style is None else context()
        arguments[place : place + 1] = [value] if style == "place" else []
        named = {_CONTEXT_NAME: value} if style == "name" else {}
    left = parameters.after(len(arguments))
    return partial(function, *arguments, **named, **{key: each for key, each in options.items() if left.accept(key)})


def unwrap(agent: Any) -> Any:
    """Follow wrappers that declare themselves transparent by `__flujo_target__`. Raises ConfigurationError: they declare each other."""
    target = agent
    for _ in range(MAX_WRAPPERS):
        inner = getattr(target, "__flujo_target__", None)
        if inner is None:
            return target
        target = inner
    what = f"agent {type(agent).__qualname__}: its `__flujo_target__` chain does not end"
    raise ConfigurationError(what, suggestion="a wrapper must name the agent that it wraps, not itself")


def _parameters(target: Any) -> Keywords:
    run = getattr(target, "run", None)
    return _keywords(run if callable(run) else target)


def _keywords(func: Any) -> Keywords:
    if isinstance(func, FunctionType):
        return _SEEN.get(func)
    if isinstance(func, MethodType):
        return _keywords(func.__func__).after_one
    if isinstance(func, partial):
        return _keywords(func.func).after(len(func.args), frozenset(func.keywords))
    describes_itself = any(getattr(func, name, None) is not None for name in ("__signature__", "__wrapped__"))
    if not isinstance(func, type) and not describes_itself:
        call = getattr(func, "__call__", None)  # noqa: B004 - its kind matters, not whether it is there
        if isinstance(call, (FunctionType, MethodType)):
            return _keywords(call)
    return _SEEN.get(func)


class _Seen:
    """Signatures by the identity of their callable; an entry goes when its callable goes."""

    def __init__(self) -> None:
        self._weak: dict[int, tuple[weakref.ref[Any], Keywords]] = {}
        self._strong: OrderedDict[int, tuple[Any, Keywords]] = OrderedDict()
        self._lock = Lock()

    def get(self, func: Any) -> Keywords:
        found = self._weak.get(id(func))
        if found is not None and found[0]() is func:
            return found[1]
        return self._strong_entry(func) or self._read(func)

    def __len__(self) -> int:
        return len(self._weak) + len(self._strong)

    def _strong_entry(self, func: Any) -> Keywords | None:
        with self._lock:
            if id(func) not in self._strong:
                return None
            self._strong.move_to_end(id(func))
            return self._strong[id(func)][1]

    def _read(self, func: Any) -> Keywords:
        keywords = _read_layers(func)
        key = id(func)
        try:
            reference = weakref.ref(func, lambda gone: self._forget(key, gone))
        except TypeError:
            self._remember(key, func, keywords)
        else:
            self._weak[key] = (reference, keywords)
        return keywords

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        # The id may be another's by now: only the entry of the one that went is dropped.
        found = self._weak.get(key)
        if found is not None and found[0] is gone:
            del self._weak[key]

    def _remember(self, key: int, func: Any, keywords: Keywords) -> None:
        with self._lock:
            self._strong[key] = (func, keywords)
            while len(self._strong) > MAX_STRONG:
                self._strong.popitem(last=False)


_SEEN = _Seen()


def _read_layers(func: Any) -> Keywords:
    if not callable(func):
        return _UNKNOWN
    try:
        return reduce(Keywords.within, map(_read_signature, _layers(func)))
    except (TypeError, ValueError):
        return _UNKNOWN


def _layers(func: Any) -> Iterator[Any]:
    """Walk a `functools.wraps` chain from the outside; a layer with its own signature decides for the rest."""
    for _ in range(MAX_WRAPPERS):
        inner = getattr(func, "__wrapped__", None)
        if inner is None or hasattr(func, "__signature__"):
            yield func
            return
        if not isinstance(func, _PASSES_ON):
            yield func
        func = inner
    raise ValueError("the chain of __wrapped__ does not end")


def _read_signature(func: Any) -> Keywords:
    parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    return Keywords(
        positional=tuple(frozenset({p.name}) if p.kind in _BY_NAME else _NONE for p in positional),
        # An optional argument of a function in C, such as that of `str.strip`, is never the context.
        expects=tuple(
            p.default is p.empty or (p.default is None and isinstance(func, (FunctionType, MethodType)))
            for p in positional
        ),
        more=any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters),
        named=frozenset(p.name for p in parameters if p.kind in _BY_NAME),
        others=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
    )
