"""Count what became of the runs, from the rows that their steps wrote and from what the project says. Pure."""

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from statistics import median_high
from typing import NamedTuple

from tests.chaos_beside.steps import STEPS

LAST = STEPS - 1


class Execution(NamedTuple):
    """A row of a step, with times in Unix seconds; `done_at` is None where it did not get so far."""

    id: str
    run: str
    step: int
    given: str
    began_at: float
    done_at: float | None


class Death(NamedTuple):
    """A worker was killed, and with it the steps of these runs."""

    at: float
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """What became of the runs that were accepted. Tallies can be added.

    Attributes:
        accepted: how many runs the project accepted.
        lost: those of which it knows nothing, or which it calls ended although their last step was never done.
        failed: those that it calls failed, though no step fails.
        never_ended: those that it calls pending at the deadline.
        doubled: steps of which two results were passed on to the next step.
        again: steps that began once more after the next step had begun, so after their result had been accepted.
        more: executions beyond one for each step.
        recovery_s: seconds from the death of a worker to the next progress of each run that it worked on; infinite if there was none.
    """

    accepted: int = 0
    lost: int = 0
    failed: int = 0
    never_ended: int = 0
    doubled: int = 0
    again: int = 0
    more: int = 0
    recovery_s: tuple[float, ...] = ()

    def __add__(self, other):
        return Tally(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def tree(self):
        """Return it as plain data, without infinite numbers."""
        known = sorted(self.recovery_s)
        return asdict(self) | {
            "recovery_s": [round(each, 2) for each in known if each < math.inf],
            "never_recovered": sum(each == math.inf for each in known),
            "recovery_p50_s": finite(median_high(known)) if known else None,
            "recovery_max_s": finite(known[-1]) if known else None,
        }

    def _values(self):
        return vars(self).values()


def finite(seconds):
    """Return rounded seconds, or None for an infinite time."""
    return None if seconds == math.inf else round(seconds, 2)


def tally(accepted, states, executions, deaths):
    """Count.

    Args:
        accepted: the runs whose enqueueing returned.
        states: what the project says of runs: `pending`, `ended`, `failed`, or nothing.
        executions: the rows of all steps.
        deaths: the workers that were killed.
    """
    by_run = defaultdict(list)
    for each in executions:
        by_run[each.run].append(each)
    verdicts = Counter(verdict(states.get(run), by_run[run]) for run in accepted)
    rows = [by_run[run] for run in accepted]
    return Tally(
        accepted=len(accepted),
        **{name: verdicts[name] for name in ("lost", "failed", "never_ended")},
        doubled=sum(doubled(of_run) for of_run in rows),
        again=sum(again(of_run) for of_run in rows),
        more=sum(len(of_run) - len({each.step for each in of_run}) for of_run in rows),
        recovery_s=tuple(seconds for death in deaths for seconds in continued(death, executions)),
    )


def verdict(state, of_run):
    """Return what became of a run: `ended`, or the name of a counter."""
    if state == "ended":
        return "ended" if any(each.step == LAST and each.done_at for each in of_run) else "lost"
    return {"pending": "never_ended", "failed": "failed"}.get(state, "lost")


def doubled(of_run):
    """Count steps of which the next step was given two results."""
    given = defaultdict(set)
    for each in of_run:
        given[each.step].add(each.given)
    return sum(len(results) > 1 for results in given.values())


def again(of_run):
    """Count steps that began after the next step had begun."""
    first, latest = {}, {}
    for each in of_run:
        first[each.step] = min(first.get(each.step, math.inf), each.began_at)
        latest[each.step] = max(latest.get(each.step, 0.0), each.began_at)
    return sum(latest[step] > first.get(step + 1, math.inf) for step in latest)


def continued(death, executions):
    """Return, for each run that had not ended, how long after the death a step of it began or was done."""
    soonest = dict.fromkeys(death.runs, math.inf)
    for each in executions:
        if each.run in soonest:
            if each.step == LAST and each.done_at and each.done_at <= death.at:
                del soonest[each.run]
            else:
                after = [time - death.at for time in (each.began_at, each.done_at) if time and time > death.at]
                soonest[each.run] = min([soonest[each.run], *after])
    return list(soonest.values())
