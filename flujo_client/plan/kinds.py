"""The kinds of step, one `KindSpec` each. Adding a kind begins here; docs/development.md shows the other three files."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    name: str
    """Its name in plans, rows, traces and events, and the name of its modules. It is stored with runs and part of their fingerprints, so it
    never changes: not even to match `yaml_name`."""
    yaml_name: str | None = None
    """Its `kind` in blueprints; None if only options of other steps make one."""
    child: str | None = None
    """The word for its children in traces; None if it has none."""
    fans_out: bool | str = False
    """Whether its children are branches, which run in parallel and end in a join; or the name of the rule that decides this."""
    performs: bool = False
    """Whether it begins with attempts at its own agent, so that it needs no start before it."""
    iterates: bool = False
    """Whether its children are numbered and all run the one body."""
    revisits: bool = False
    """Whether it runs a body again until a condition holds, so that caches inside it are bypassed."""
    is_composed: bool = False
    """Whether its step compiles to other kinds, so that plans and workers never see it."""

    @property
    def runs_bodies_again(self) -> bool:
        """Return whether a step inside it may run more than once."""
        return self.iterates or self.revisits


STEP: Final = KindSpec(name="step", yaml_name="step", performs=True)
PARALLEL: Final = KindSpec(name="parallel", yaml_name="parallel", child="branch", fans_out=True)
CONDITIONAL: Final = KindSpec(name="conditional", yaml_name="conditional", child="path")
LOOP: Final = KindSpec(name="loop", yaml_name="loop", child="iteration", iterates=True, revisits=True)
MAP: Final = KindSpec(name="map", yaml_name="map", child="item", fans_out="parallel", iterates=True)
ROUTER: Final = KindSpec(name="router", yaml_name="dynamic_router", child="branch", fans_out=True, performs=True)
HUMAN: Final = KindSpec(name="human", yaml_name="hitl")
EVENT: Final = KindSpec(name="event", yaml_name="wait_for_event")
SLEEP: Final = KindSpec(name="sleep", yaml_name="sleep")
CACHE: Final = KindSpec(name="cache", yaml_name="cache", child="body")
TREE_SEARCH: Final = KindSpec(name="tree_search", yaml_name="tree_search", is_composed=True)
MACHINE: Final = KindSpec(name="machine", yaml_name="StateMachine", child="state", revisits=True)
AGENTIC_LOOP: Final = KindSpec(name="agentic_loop", yaml_name="agentic_loop", is_composed=True)
NESTED: Final = KindSpec(name="nested", yaml_name="import", child="body")
FALLBACK: Final = KindSpec(name="fallback", child="body")
BACKGROUND: Final = KindSpec(name="background")

KINDS: Final = MappingProxyType({each.name: each for each in tuple(vars().values()) if isinstance(each, KindSpec)})
"""Every kind by its name, in the order in which blueprints list them."""
YAML_KINDS: Final = MappingProxyType({each.yaml_name: each for each in KINDS.values() if each.yaml_name is not None})
"""The kinds that blueprints know, by their name there."""
