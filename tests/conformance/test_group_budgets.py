"""Groups under limits: claims that reserve and merges that settle, many in one transaction, with the promises of the single statements."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from grouped import break_statement, grouped
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from worlds import MAX_LOST, Memory, World, waits

from flujo_client.contract.outcome import Correction, Outcome, Usage
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.ports import Claim, ClaimId, Committed
from tests.support.builders import decided, enqueued, failed, following, pipeline_of, succeeded

pytestmark = pytest.mark.services

MERGED = Committed("merged")
NOTHING = Amount()
NUMBERS = count()


@pytest.fixture(params=[True, False], ids=["prepared", "unprepared"])
def groups(request, database_url, monkeypatch):
    """Groups with prepared statements, and as they go through an old PgBouncer. They wait for locks for as long as a test needs."""
    monkeypatch.setattr("flujo_client.transport.postgres.LOCK_WAIT_S", 60.0)
    with grouped(database_url, prepare=request.param) as opened:
        yield opened


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


def limited(world, count=1, names=("a",)):
    """So many runs under a limit."""
    news = []
    for _ in range(count):
        run = f"run_limited_{next(NUMBERS):06}"
        in_force = {"run": run, "limits": None, "tenant": "", "tenant_limits": None}
        news.append(world.record(enqueued(pipeline_of(*names), run_id=run, limits=in_force)))
    return news


def asks(tokens, *scopes, most=100):
    return [Reservation(scope, Amount(tokens=tokens), None, most) for scope in scopes or ("tenant:acme",)]


def claims(groups, news, *wanted, worker="w1"):
    ask = groups.ledger.claim
    return groups.together(
        *(ask(new.first.key, worker, to_reserve=each) for new, each in zip(news, wanted, strict=True))
    )


def claimed_alone(world, new, wanted, worker="w1"):
    return world.stores.attempts.claim(new.first.key, worker, max_lost=MAX_LOST, to_reserve=wanted)


def merge_of(new, tokens, fence=1, **rest):
    usage = Usage(input_tokens=tokens) if tokens else Usage()
    return decided(new, replace(succeeded("one", usage=usage), **rest), fence=fence)


def commits(groups, *decisions):
    return groups.together(*(groups.ledger.commit(each) for each in decisions))


def run_of(new):
    return new.first.ticket.run


def tokens_of(world, scope="tenant:acme"):
    budget = world.budgets()[scope]
    return budget.settled.tokens, budget.reserved.tokens, budget.overrun.tokens


def test_a_group_reserves_with_its_claims_and_settles_with_its_merges(world, groups):
    """M-044: several attempts under one budget, and one under another one too."""
    news = limited(world, 3)
    wanted = asks(20), asks(20), asks(20, "run:x", "tenant:acme")
    assert claims(groups, news, *wanted) == [Claim(1)] * 3
    assert (tokens_of(world), tokens_of(world, "run:x")) == ((0, 60, 0), (0, 20, 0))
    decisions = [merge_of(new, 20 + number) for number, new in enumerate(news)]
    assert commits(groups, *decisions) == [MERGED] * 3
    assert (tokens_of(world), tokens_of(world, "run:x")) == ((63, 0, 0), (22, 0, 0))
    assert [world.attempts(run_of(new))[0].tokens for new in news] == [20, 21, 22]
    assert {world.run(run_of(new)).status for new in news} == {"succeeded"}
    assert [world.commit(each) for each in decisions] == ["repeated"] * 3
    assert tokens_of(world) == (63, 0, 0)


def test_each_finds_what_those_before_it_left(world, groups):
    """Requirements §2.9: what a budget had left when each asked."""
    news = limited(world, 3)
    claims(groups, news, *[asks(20)] * 3)
    assert [world.attempts(run_of(new))[0].quota_before_tokens for new in news] == [100, 80, 60]


def test_what_can_never_fit_is_claimed_and_refused_beside_what_fits(world, groups):
    """M-435: all of it or nothing; its neighbours are granted theirs."""
    news = limited(world, 3)
    wanted = asks(40), [*asks(70, "run:x", most=1000), *asks(70, most=60)], asks(10)
    claimed_alone(world, *limited(world), asks(50, "tenant:acme", most=100))
    first, second, third = claims(groups, news, *wanted)
    assert (first, third, second.fence) == (Claim(1), Claim(1), 1)
    assert second.over.message == (
        "Insufficient quota: Token limit of 100 exceeded by an attempt that asks for 70: 0 spent, 90 reserved (tenant:acme)"
    )
    assert (tokens_of(world), tokens_of(world, "run:x")) == ((0, 100, 0), (0, 0, 0))
    assert commits(groups, decided(news[1], Outcome("limit", fault=second.over))) == [MERGED]
    assert world.run(run_of(news[1])).status == "failed"


def test_where_not_all_fit_that_would_alone_each_is_asked_alone(world, groups):
    news = limited(world, 4)
    before = [world.picture(run_of(new)) for new in news]
    assert claims(groups, news, *[asks(40)] * 4) == [None] * 4
    assert ([world.picture(run_of(new)) for new in news], world.budgets()) == (before, {})
    assert [claimed_alone(world, new, asks(40)).over is None for new in news] == [True, True, False, False]


def test_a_pipeline_whose_group_undid_itself_stays_in_groups(world, groups):
    assert claims(groups, limited(world, 3), *[asks(40)] * 3) == [None] * 3
    assert claims(groups, limited(world, 2), *[asks(40)] * 2) == [Claim(1)] * 2


def test_a_limit_that_is_passed_is_told_to_the_one_that_passed_it(world, groups):
    """M-430, C-10: the run fails in the commit of the merge that passed its limit; the others of the group do not."""
    news = limited(world, 3, names=("a", "b"))
    claims(groups, news, *[asks(30)] * 3)
    decisions = [merge_of(new, tokens) for new, tokens in zip(news, (30, 50, 30), strict=True)]
    assert commits(groups, *decisions) == [None] * 3
    assert tokens_of(world) == (0, 90, 0)
    alone = [world.stores.attempts.commit(each) for each in decisions]
    assert [each.breach is not None for each in alone] == [False, True, False]
    assert tokens_of(world) == (100, 0, 10)
    assert world.stores.backlog.runs_to_stop(9) == [(run_of(news[1]), "failed")]


def claiming(new, tokens, wanted, worker="w1"):
    """A merge that claims what follows for a worker, and reserves for it."""
    decision = merge_of(new, tokens)
    [following] = decision.next
    return replace(decision, next=(replace(following, claimed_by=worker, to_reserve=tuple(wanted)),))


def running(world, tokens=30):
    """A run of two steps, the first of which is claimed and has reserved so much."""
    [new] = limited(world, names=("a", "b"))
    claimed_alone(world, new, asks(tokens))
    return new


def test_a_claim_ahead_reserves_in_the_merge_before(world, groups):
    """The merge releases its own first. What was reserved so is settled as any other reservation."""
    new = running(world, tokens=90)
    decision = claiming(new, 20, asks(80))
    [committed] = commits(groups, decision)
    second = world.attempts(run_of(new))[1]
    assert (second.status, second.worker, second.fence) == ("running", "w1", 1)
    assert (committed.over, committed.claim_id is None, tokens_of(world)) == (None, False, (20, 80, 0))
    last = decided(new, succeeded("two", usage=Usage(input_tokens=50)), fence=1, at=following(decision))
    assert commits(groups, last) == [MERGED]
    assert (world.run(run_of(new)).status, tokens_of(world)) == ("succeeded", (70, 0, 0))


def test_a_claim_ahead_that_gets_no_reservation_says_why(world, groups):
    new = running(world)
    [committed] = commits(groups, claiming(new, 30, asks(71)))
    assert committed.claim_id is not None
    assert "asks for 71: 30 spent, 0 reserved (tenant:acme)" in committed.over.message
    assert (world.attempts(run_of(new))[1].status, tokens_of(world)) == ("running", (30, 0, 0))


@pytest.mark.parametrize(("spent", "scope"), [(101, "tenant:acme"), (30, "tenant:new")], ids=["passes", "is not open"])
def test_with_a_budget_that_passes_its_limit_or_is_not_open_nothing_is_done(world, groups, spent, scope):
    """Alone it is merged, and claims nothing."""
    new = running(world)
    decision, before = claiming(new, spent, asks(20, scope)), world.picture(run_of(new))
    assert commits(groups, decision) == [None]
    assert (world.picture(run_of(new)), tokens_of(world)) == (before, (0, 30, 0))
    alone = world.stores.attempts.commit(decision)
    assert (alone.verdict, alone.claim_id, alone.breach is None) == ("merged", None, spent == 30)
    assert world.attempts(run_of(new))[1].status == "ready"
    assert tokens_of(world)[1] == 0


def test_what_is_not_claimed_ahead_reserves_nothing(world, groups):
    """Its worker's lease is over, say."""
    new = running(world)
    [committed] = commits(groups, claiming(new, 30, asks(20), worker="nobody"))
    assert (committed, world.attempts(run_of(new))[1].status) == (MERGED, "ready")
    assert tokens_of(world) == (30, 0, 0)


def test_in_memory_a_claim_ahead_reserves_too():
    """The same answers as from a group."""
    world = World(Memory())
    for tokens, over in ((70, False), (71, True)):
        new = running(world)
        committed = world.stores.attempts.commit(claiming(new, 0, asks(tokens)))
        assert (committed.claim_id is None, committed.over is not None) == (False, over)
        assert world.attempts(run_of(new))[1].status == "running"


def test_what_is_left_out_settles_nothing(world, groups):
    news = limited(world, 3)
    claims(groups, news, *[asks(20)] * 3)
    decisions = [merge_of(new, 20, fence=fence) for new, fence in zip(news, (1, 7, 1), strict=True)]
    assert commits(groups, *decisions) == [MERGED, None, MERGED]
    assert tokens_of(world) == (40, 20, 0)


def test_what_is_not_free_reserves_nothing(world, groups):
    news = limited(world, 3)
    world.claim(news[1])
    assert claims(groups, news, *[asks(20)] * 3) == [Claim(1), None, Claim(1)]
    assert tokens_of(world) == (0, 40, 0)


def test_an_attempt_that_was_lost_continues_with_what_it_holds(world, groups):
    """M-013: no one knows what the lost worker spent."""
    [new] = limited(world)
    world.register_worker("w2")
    claimed_alone(world, new, asks(60), worker="w2")
    world.stores.leases.deregister_worker("w2")
    world.due()
    assert claims(groups, [new], asks(60)) == [Claim(2)]
    assert tokens_of(world) == (0, 60, 0)


def test_what_was_booked_before_is_not_booked_again(world, groups):
    """Law 1: a refused merge was booked, and the same outcome is merged later."""
    [new] = limited(world)
    claims(groups, [new], asks(20))
    world.stores.attempts.spend(run_of(new), ClaimId(new.first.key, 1), Usage(input_tokens=15))
    assert commits(groups, merge_of(new, 15)) == [MERGED]
    assert tokens_of(world) == (15, 0, 0)


def test_a_group_under_limits_keeps_corrections(world, groups):
    made = Correction("a", None, None, None, "2", "semantic", 1, ("fix",), 1.0)
    [new] = limited(world)
    claims(groups, [new], asks(20))
    assert commits(groups, merge_of(new, 20, corrections=(made,))) == [MERGED]
    assert [each.correction for each in world.corrections(run_of(new))] == [made]


def test_a_run_that_ends_gives_back_what_others_of_it_hold(world, groups):
    [new] = limited(world)
    claims(groups, [new], asks(20))
    lost = decided(new, Outcome("lost", fault=failed().fault))
    assert commits(groups, lost) == [MERGED]
    assert tokens_of(world) == (0, 0, 0)


def test_a_group_waits_for_a_budget_and_judges_by_what_it_finds(world, groups, held, database_url):
    """Two workers, one budget: the second is refused what the first has taken."""
    first, second = limited(world, 2)
    claimed_alone(world, first, asks(0))
    held.execute("UPDATE flujo_budgets SET reserved_tokens = 70")
    answer = waits(database_url, lambda: claims(groups, [second], asks(40)))
    held.commit()
    [claim] = answer.result(60)
    assert "70 reserved" in claim.over.message


def test_a_budget_that_someone_keeps_holds_no_one_else_up_for_long(world, held, database_url):
    """The group gives up, and each is asked alone. An old PgBouncer is told no settings."""
    first, second, third = limited(world, 3)
    claimed_alone(world, first, asks(0))
    held.execute("SELECT 1 FROM flujo_budgets FOR UPDATE")
    with grouped(database_url) as groups:
        assert claims(groups, [second, third], asks(40), asks(40, "tenant:other")) == [None, None]
        assert claims(groups, [third], asks(40, "tenant:other")) == [Claim(1)]


def test_who_is_under_no_limit_waits_for_no_budget(world, groups, held, database_url):
    first, second = limited(world, 2)
    claimed_alone(world, first, asks(0))
    free = world.record(enqueued())
    held.execute("SELECT 1 FROM flujo_budgets FOR UPDATE")
    waiting = waits(database_url, lambda: claims(groups, [second], asks(40)))
    assert claims(groups, [free], ()) == [Claim(1)]
    assert commits(groups, decided(free, succeeded("one"))) == [MERGED]
    held.commit()
    assert waiting.result(60) == [Claim(1)]


def test_groups_of_two_workers_never_pass_a_limit_and_never_wait_in_a_circle(world, database_url, race, no_deadlock):
    """M-435, law 7: in either order of their budgets, beside cancels; what a group does not answer is asked alone."""
    scopes = ("run:x", "step:x:a", "tenant:acme")
    with grouped(database_url) as one, grouped(database_url) as two:
        for number in range(4):
            mine = [f"{scope}:{number}" for scope in scopes]
            sides = [limited(world, 6), limited(world, 6)]

            def carry_out(groups, news, names):
                wanted = asks(10, *names, most=90)
                granted = [
                    claim or claimed_alone(world, new, wanted)
                    for claim, new in zip(claims(groups, news, *[wanted] * 6), news, strict=True)
                ]
                taken = [new for new, claim in zip(news, granted, strict=True) if claim.fence and not claim.over]
                decisions = [merge_of(new, 10) for new in taken]
                for answer, decision in zip(commits(groups, *decisions), decisions, strict=True):
                    assert (answer or world.stores.attempts.commit(decision)).verdict in ("merged", "stopped")
                return len(taken)

            stop = sides[0][0]
            taken = race(
                lambda sides=sides, mine=mine: carry_out(one, sides[0], mine),
                lambda sides=sides, mine=mine: carry_out(two, sides[1], mine[::-1]),
                lambda stop=stop: world.stores.backlog.stop(run_of(stop), "cancelled", "enough") and 0,
            )
            for scope in mine:
                settled, reserved, overrun = tokens_of(world, scope)
                assert (settled + overrun, reserved) == (10 * sum(taken), 0)
                assert settled <= 90


CLAIMED = st.fixed_dictionaries(
    {
        "scopes": st.sampled_from([("x",), ("y",), ("x", "y"), ()]),
        "asked": st.sampled_from([0, 10, 20, 80]),
        "spent": st.sampled_from([0, 5, 10, 20, 25]),
        "fence": st.sampled_from([1, 1, 1, 7]),
    }
)
LIMITS = {"x": 60, "y": 100}


@pytest.fixture(scope="module")
def place(postgres, database_url):
    with grouped(database_url) as groups:
        postgres.empty()
        yield SimpleNamespace(groups=groups, world=World(postgres))


def check(place, rows):
    """Claim and merge in groups, and whatever is not answered alone; beside twins that the single statements change in the same order."""
    world, groups, name = place.world, place.groups, next(NUMBERS)
    world.register_worker("w1")

    def wanted(row, side):
        return [
            Reservation(f"{side}:{each}:{name}", Amount(tokens=row["asked"]), None, LIMITS[each])
            for each in row["scopes"]
        ]

    news, twins = limited(world, len(rows)), limited(world, len(rows))
    answers = claims(groups, news, *(wanted(row, "group") for row in rows))
    for row, new, twin, answer in zip(rows, news, twins, answers, strict=True):
        claim = answer or claimed_alone(world, new, wanted(row, "group"))
        expected = claimed_alone(world, twin, wanted(row, "alone"))
        assert (claim.over and claim.over.message.replace("group:", "alone:")) == (
            expected.over and expected.over.message
        )
        row["over"] = claim.over
    assert_reserved_alike(world, name)
    parts = sorted(zip(rows, news, twins, strict=True), key=lambda part: part[0]["spent"] - part[0]["asked"])
    parts = [part for part in parts if part[0]["over"] is None]
    answers = commits(groups, *(merge_of(new, row["spent"], row["fence"]) for row, new, _ in parts))
    in_turn = sorted(zip(parts, answers, strict=True), key=lambda part: part[1] is None)
    for (row, new, twin), answer in in_turn:
        merged = answer or world.stores.attempts.commit(merge_of(new, row["spent"], row["fence"]))
        expected = world.stores.attempts.commit(merge_of(twin, row["spent"], row["fence"]))
        assert (merged.verdict, merged.breach is None) == (expected.verdict, expected.breach is None)
    assert_reserved_alike(world, name)


def assert_reserved_alike(world, name):
    budgets = {scope: each for scope, each in world.budgets().items() if scope.endswith(f":{name}")}
    rows = world.setting.rows(
        "SELECT scope, key, tokens, before_tokens, held FROM flujo_reservations ORDER BY scope, key"
    )

    def picture(side):
        held = [
            tuple(row.values())[2:]
            for row in rows
            if row["scope"].startswith(side) and row["scope"].endswith(f":{name}")
        ]
        return {scope[6:]: replace(each, scope="") for scope, each in budgets.items() if scope.startswith(side)}, held

    assert picture("group:") == picture("alone:")
    for budget in budgets.values():
        assert budget.counted.tokens <= budget.limit_tokens


@given(rows=st.lists(CLAIMED, min_size=1, max_size=6))
@settings(max_examples=40)
def test_groups_reserve_and_settle_as_the_single_statements_do(place, rows):
    """Law 7."""
    check(place, rows)


MUTANTS = {
    "reserves twice": ("reserve", "b.reserved_tokens + g.tokens", "b.reserved_tokens + 2 * g.tokens"),
    "reserves nothing": ("reserve", "b.reserved_tokens + g.tokens", "b.reserved_tokens"),
    "grants one of two budgets": ("reserve", "OVER (PARTITION BY k.of)", "OVER (PARTITION BY k.of, k.scope)"),
    "forgets a settlement": (
        "settle",
        "settled_tokens = b.settled_tokens + k.covered_tokens",
        "settled_tokens = b.settled_tokens",
    ),
    "forgets one merge of many": ("settle", "FROM bill k CROSS", "FROM (SELECT * FROM bill LIMIT 1) k CROSS"),
    "gives nothing back": ("settle", "b.reserved_tokens - k.back_tokens", "b.reserved_tokens"),
    "gives back what is not over": ("settle", "OR a.xmin = pg_current_xact_id()::xid", "OR true"),
    "keeps reservations held": ("settle", "SET held = false", "SET held = true"),
}


@pytest.mark.large
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(place, database_url, monkeypatch, mutant):
    """The law sees a statement that breaks it."""
    name, said, instead = MUTANTS[mutant]
    break_statement(monkeypatch, name, said, instead)
    with grouped(database_url) as groups:
        there = SimpleNamespace(world=place.world, groups=groups)

        @given(rows=st.lists(CLAIMED, min_size=2, max_size=6))
        @settings(max_examples=100, phases=[Phase.generate])
        def search(rows):
            check(there, rows)

        with pytest.raises((AssertionError, ExceptionGroup)):
            search()
