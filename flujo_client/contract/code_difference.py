"""Describe the differences between the code that a run was performed with and the present code. Pure.

A plan's fingerprint leaves this out: bodies of functions, tools, prompts, model settings, fields of the context model. In: two plans and
the versions of code on record. Out: differences, which forbid nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_client.contract.code import CONTEXT_FIELD, CodeVersion, context_fields, words_of
from flujo_client.plan.plan_difference import LONGEST, Difference, differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flujo_client.plan.plan import Nodes, Plan
    from flujo_client.plan.plan_difference import What

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
    """The versions that a run's steps were performed with, the latest last."""
    old: Mapping[str, CodeVersion] = field(default_factory=dict)
    """Those of workers when they last had the run's plan, by the path of the step."""
    new: Mapping[str, CodeVersion] = field(default_factory=dict)
    """The same of the plan to compare with."""

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
            found.append(
                each if same is None or each.old else replace(each, old=same.old, new=same.new, lines=same.lines)
            )
    left = (replace(each, aspect="output schema") if each.aspect == _OUTPUT else each for each in of_code.values())
    return (*found, *left)


def _of_code(old: Plan, new: Plan, code: CodeOnRecord) -> Iterator[Difference]:
    before = dict(code.old) | dict(_performed(old, code.run))
    places = dict(_places(old.nodes, "", ()))
    fields = [
        found
        for version in (*code.old.values(), *(each.version for each in code.run))
        if (found := context_fields(version)).parts
    ]
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
    return CodeVersion(
        {name: each for name, each in version.parts.items() if not name.startswith(CONTEXT_FIELD)}, version.texts
    )


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
