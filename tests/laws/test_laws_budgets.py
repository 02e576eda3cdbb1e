"""Law 7: settled and reserved together never pass the limit; what a call cost beyond is booked apart, and nothing is lost or doubled.

Over every order of reserving, settling, giving back and late costs; each law with a mutant that breaks it.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flujo_worker.domain.budget import Amount, Budget
from tests.support.breadth import examples

amounts = st.builds(Amount, st.integers(0, 50).map(lambda cents: Decimal(cents) / 100), st.integers(0, 50))
acts = st.lists(st.tuples(st.sampled_from(("reserve", "settle", "lose", "late")), amounts), max_size=30)
limits = st.tuples(st.none() | st.integers(0, 200), st.none() | st.integers(0, 200))
lawful = settings(max_examples=examples(150), deadline=None, report_multiple_bugs=False)
unlawful = settings(lawful, max_examples=300, derandomize=True, phases=[Phase.generate])
"""For mutants: that they are noticed is enough, by whatever example."""


def new_budget(cents, tokens):
    return Budget("run:a", None if cents is None else Decimal(cents) / 100, tokens)


def held_to_its_limit(budget):
    counted = budget.counted
    assert budget.limit_usd is None or counted.usd <= budget.limit_usd
    assert budget.limit_tokens is None or counted.tokens <= budget.limit_tokens
    assert all(
        part >= 0 for each in (budget.settled, budget.reserved, budget.overrun) for part in (each.usd, each.tokens)
    )


def live(budget, happened):
    """Let it all happen; the law holds after each act, and at the end the sums are those of what was really spent."""
    waiting, spent = [], Counter()
    for act, amount in happened:
        if act == "reserve" and budget.fits(amount):
            budget = budget.reserve(amount)
            waiting.append(amount)
        elif act == "late" or (act == "settle" and waiting):
            back = waiting.pop() if act == "settle" else Amount()
            budget = budget.settle(amount, back)
            spent.update(usd=amount.usd, tokens=amount.tokens)
        elif act == "lose" and waiting:
            budget = budget.settle(Amount(), waiting.pop())
        held_to_its_limit(budget)
    assert (budget.spent.usd, budget.spent.tokens) == (spent["usd"], spent["tokens"])
    assert budget.reserved == sum(waiting, Amount())


@lawful
@given(limits, acts)
def test_law_7_a_budget_is_held_to_its_limit_and_to_what_was_spent(limit, happened):
    live(new_budget(*limit), happened)


class Generous(Budget):
    """Admits whatever the limit alone allows."""

    def fits(self, asked):
        return self.limit_tokens is None or asked.tokens <= self.limit_tokens

    def reserve(self, asked):
        return replace(self, reserved=self.reserved + asked)


class Unbounded(Budget):
    """Settles what was spent, whatever the limit says."""

    def settle(self, spent, back):
        return replace(self, reserved=self.reserved - back, settled=self.settled + spent)


class Forgetful(Budget):
    """Books nothing beyond the limit."""

    def settle(self, spent, back):
        return replace(Budget.settle(self, spent, back), overrun=Amount())


class Hoarding(Budget):
    """Never gives a reservation back."""

    def settle(self, spent, back):
        return Budget.settle(self, spent, Amount())


@pytest.mark.parametrize("mutant", [Generous, Unbounded, Forgetful, Hoarding])
def test_law_7_notices(mutant):
    @unlawful
    @given(limits, acts)
    def law(limit, happened):
        sound = new_budget(*limit)
        live(mutant(sound.scope, sound.limit_usd, sound.limit_tokens), happened)

    with pytest.raises(AssertionError):
        law()
