"""How a lone attempt's process takes the message that it publishes: never one too many, and nothing that is not for it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import orjson
import pytest
from celery import Celery, signals
from test_strategy import published

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_client.transport.loop_publisher import Taken
from flujo_client.transport.messages import MessageWriter
from flujo_client.transport.wire import register
from flujo_worker.celery_app.consumer.channel import MOST_AT_ONCE
from flujo_worker.celery_app.consumer.pool import AttemptPool
from flujo_worker.celery_app.consumer.strategy import strategy
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.values import FanOut
from flujo_worker.engine.claim_ahead import Taker
from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.errors import WireError
from flujo_worker.ports import Claim, ClaimTerms, Committed
from tests.support.builders import decided, enqueued, failed, following, pipeline_of, succeeded

FIRST = enqueued().first
QUEUE = FIRST.queue


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.close()


OWN, ANOTHER = "own", Taken(b"item")


class Sender:
    """Remembers what was published, and gives as many items as are taken, once Redis answers: its own or another's."""

    def __init__(self, item=ANOTHER):
        self.taken, self.returned, self.claimed, self.item, self.answers = [], [], [], item, threading.Event()
        self.pushed, self.has_chord = [], True
        self.answers.set()

    def open_chord(self, first, fan_out):
        return self.has_chord

    async def push(self, envelopes, *, take=0, is_claimed=False):
        self.taken.append(take)
        self.claimed.append(is_claimed)
        self.pushed.append(len(envelopes))
        await asyncio.get_running_loop().run_in_executor(None, self.answers.wait, 10)
        if self.item is None:
            return None
        return [Taken(b"own", each) if self.item is OWN else self.item for each in envelopes[:take]]

    def put_back(self, message, like):
        self.returned.append((message, like))


class Hungry(Taker):
    """Takes all it is given, or nothing of it."""

    def __init__(self, *, accepts=True):
        self.items, self.own, self._accepts, self.room = [], [], accepts, 100

    def wants(self, kind, queue):
        return True

    def spare(self, kind, queue):
        return self.room

    def take_own(self, envelope):
        self.own.append(envelope)

    def take_item(self, item, queue):
        self.items.append((item, queue))
        return self._accepts


def sent(engine, taker, *, attempts=1, messages=1, item=ANOTHER, envelope=FIRST):
    """Publish from so many attempts at once; give the sender."""
    sender, threads = Sender(item), ThreadPoolExecutor(1)
    effects = LoopEffects(engine, None, None, threads, sender, at_once=1)
    effects.ahead.taker = taker

    async def attempt(ended):
        await effects.send([envelope] * messages, None)
        ended.set_result(None)

    async def perform():
        ends = [engine.loop.create_future() for _ in range(attempts)]
        for each in ends:
            engine.begin(attempt(each))
        await asyncio.wait_for(asyncio.gather(*ends), 10)

    engine.run(perform())
    threads.shutdown()
    return sender


def test_a_lone_attempt_takes_what_comes_next(engine):
    taker = Hungry()
    sender = sent(engine, taker)
    assert (sender.taken, taker.items, sender.returned) == ([True], [(b"item", QUEUE)], [])


def test_its_own_message_is_not_read_again(engine):
    taker = Hungry()
    sent(engine, taker, item=OWN)
    assert (taker.own, taker.items) == ([FIRST], [])


BRANCHES = [replace(FIRST, address=f"f/b{lane}", lanes={"f": lane}) for lane in range(150)]


def begun(engine, *, sharing, room=1000, rooms=None, item=OWN, has_chord=True):
    """Begin a fan-out of 150 in a process that shares its queue with so many others; give the sender and the taker."""
    sender, taker, threads = Sender(item), Hungry(), ThreadPoolExecutor(1)
    sender.has_chord, taker.room = has_chord, room
    if rooms:
        taker.spare = lambda *_: rooms.pop(0)
    effects = LoopEffects(engine, None, None, threads, sender, at_once=1)
    effects.ahead.taker, effects.sharing = taker, lambda: sharing
    engine.run(effects.send(BRANCHES, FanOut("f", 150)))
    threads.shutdown()
    return sender, taker


def test_a_fan_out_is_published_in_portions_and_its_process_takes_an_equal_share_of_each(engine):
    sender, taker = begun(engine, sharing=2)
    assert (sender.pushed, sender.taken) == ([64, 64, 22], [32, 32, 11])
    assert taker.own == [*BRANCHES[:32], *BRANCHES[64:96], *BRANCHES[128:139]]


def test_it_takes_no_more_than_its_share_of_its_free_slots(engine):
    assert begun(engine, sharing=2, room=70)[0].taken == [32, 3, 0]


def test_a_process_that_stops_consuming_takes_nothing_more(engine):
    sender, taker = begun(engine, sharing=2, rooms=[1000, 1000, 0, 0])
    assert (sender.taken, len(taker.own)) == ([32, 0, 0], 32)


def test_while_it_does_not_know_who_shares_the_queue_it_takes_nothing(engine):
    assert begun(engine, sharing=None)[0].taken == [0, 0, 0]


def test_older_messages_that_are_taken_instead_are_carried_out(engine):
    _, taker = begun(engine, sharing=50, item=ANOTHER)
    assert (taker.own, taker.items) == ([], [(b"item", QUEUE)] * 2)


def test_after_a_portion_that_the_broker_does_not_take_the_rest_is_left_to_the_sweeper(engine):
    assert begun(engine, sharing=2, item=None)[0].pushed == [64]


def test_without_its_chord_no_branch_is_published(engine):
    assert begun(engine, sharing=2, has_chord=False)[0].pushed == []


def test_what_cannot_be_taken_goes_back(engine):
    sender = sent(engine, Hungry(accepts=False))
    assert sender.returned == [(b"item", FIRST)]


def test_beside_other_attempts_nothing_is_taken(engine):
    """Else a run would stay forever with the process that it began in, however busy that is and idle the others."""
    sender = sent(engine, Hungry(), attempts=3)
    assert sender.taken[:2] == [False, False]


def test_where_several_follow_nothing_is_taken(engine):
    assert sent(engine, Hungry(), messages=2).taken == [False]


def test_until_a_pool_consumes_nothing_is_taken(engine):
    assert sent(engine, Taker()).taken == [False]


class Ledger:
    """Commits whatever it is given, and claims what it is asked to; remembers what was asked."""

    def __init__(self):
        self.claimed_by, self.claims = [], []

    async def commit(self, decision):
        [following] = decision.next
        self.claimed_by.append(following.claimed_by)
        return Committed("merged", claim_id="c7" if following.claimed_by else None)

    async def claim(self, key, *_, **__):
        self.claims.append(key)
        return Claim(5)


TERMS = ClaimTerms(max_lost=2, may_judge=True, to_reserve=(), room="shared")
DECISION = decided(enqueued(pipeline_of("a", "b")), succeeded())
NEXT = following(DECISION)


def alone(engine, *acts, item=OWN):
    """Do something in one attempt after another, in a process that takes this item whenever it may; give the ledger, sender and taker."""
    sender, threads, ledger = Sender(item), ThreadPoolExecutor(1), Ledger()
    effects = LoopEffects(engine, ledger, ledger, threads, sender, at_once=1)
    effects.ahead.taker = Hungry()

    async def attempt(act, ended):
        ended.set_result(await act(effects))

    async def perform():
        results = []
        for act in acts:
            ended = engine.loop.create_future()
            engine.begin(attempt(act, ended))
            results.append(await asyncio.wait_for(ended, 10))
        return results

    *_, last = engine.run(perform())
    threads.shutdown()
    return last, ledger, sender, effects.ahead.taker


async def step(effects):
    """An attempt: its claim, its merge, and what follows is published."""
    claim = await effects.claim(FIRST, "w1", **TERMS)
    await effects.commit(DECISION)
    await effects.send([NEXT], None)
    return claim


async def merge(effects):
    await effects.commit(DECISION)


async def following_step(effects):
    return await effects.claim(NEXT, "w1", **TERMS)


def test_who_took_its_own_message_claims_the_next_attempt_in_the_merge(engine):
    claim, ledger, _, _ = alone(engine, step, step, following_step)
    assert (ledger.claimed_by, ledger.claims) == ([None, "w1"], [FIRST.key] * 2)
    assert (claim.fence, claim.claim_id) == (1, "c7")


def test_a_claim_ahead_is_used_once(engine):
    claim, ledger, _, _ = alone(engine, step, step, following_step, following_step)
    assert (claim.fence, ledger.claims) == (5, [FIRST.key, FIRST.key, NEXT.key])


def test_behind_others_nothing_is_claimed_ahead(engine):
    _, ledger, _, _ = alone(engine, step, step, item=ANOTHER)
    assert ledger.claimed_by == [None, None]


LIMITS = {"run": "run_limited", "limits": None, "tenant": "", "tenant_limits": None}
LIMITED = decided(enqueued(pipeline_of("a", "b"), limits=LIMITS), succeeded())
RESERVES = [Reservation("run:x", Amount(tokens=5))]


@pytest.mark.parametrize(("known", "claimed_by"), [(RESERVES, "w1"), ([], "w1"), (None, None)])
def test_under_limits_an_attempt_is_claimed_ahead_if_its_reservations_are_known(engine, known, claimed_by):
    """The claim has the refusal of a budget; such an attempt ends without being performed."""
    asked, over = [], failed().fault

    async def limited(effects):
        async def commit(decision):
            [after] = decision.next
            asked.append((after.claimed_by, list(after.to_reserve)))
            return Committed("merged", claim_id="c7" if after.claimed_by else None, over=over)

        effects._groups.commit = commit
        effects.ahead.known_reservations = lambda envelope: known if envelope == following(LIMITED) else 1
        await effects.commit(LIMITED)
        return await effects.claim(following(LIMITED), "w1", **TERMS)

    claim, _, _, _ = alone(engine, step, limited)
    assert asked == [(claimed_by, known or [])]
    assert claim == (Claim(1, over=over) if claimed_by else Claim(5))


def test_what_was_claimed_begins_once_its_message_is_taken_back(engine):
    """Until then nothing is under way that no message carries."""

    async def while_redis_is_silent(effects):
        effects._sender.answers.clear()
        sending = asyncio.ensure_future(step(effects))
        while len(effects._sender.taken) < 2:  # noqa: ASYNC110 - another thread waits for the test
            await asyncio.sleep(0)
        begun = list(effects.ahead.taker.own)
        effects._sender.answers.set()
        await sending
        return begun

    begun, _, sender, taker = alone(engine, step, while_redis_is_silent)
    assert (begun, taker.own) == ([NEXT], [NEXT, NEXT])
    assert (sender.taken, sender.claimed) == ([True, True], [False, True])


def test_a_message_that_came_first_is_carried_out_as_well(engine):
    """The claimed attempt is under way by then. Its own message is refused wherever it comes."""

    async def overtaken(effects):
        effects._sender.item = ANOTHER
        return await step(effects)

    _, ledger, _, taker = alone(engine, step, overtaken, merge)
    assert taker.own == [NEXT, NEXT]
    assert taker.items == [(b"item", QUEUE)]
    assert ledger.claimed_by == [None, "w1", None]


@pytest.mark.parametrize("accepts", [True, False])
def test_a_message_of_another_that_cannot_be_taken_goes_back(engine, accepts):
    async def overtaken(effects):
        effects._sender.item, effects.ahead.taker._accepts = ANOTHER, accepts
        return await step(effects)

    _, _, sender, _ = alone(engine, step, overtaken)
    assert sender.returned == ([] if accepts else [(b"item", NEXT)])


def test_what_was_claimed_begins_even_if_its_message_is_lost(engine):
    """Where Redis is away nothing is claimed ahead any more."""

    async def away(effects):
        effects._sender.item = None
        return await step(effects)

    _, ledger, _, taker = alone(engine, step, away, merge)
    assert (taker.own, ledger.claimed_by) == ([NEXT, NEXT], [None, "w1", None])


def act():
    """What a task does."""


@pytest.fixture
def pool():
    register(())
    app = Celery(set_as_current=False)
    app.task(act, name=TASK_ATTEMPT, shared=False)
    pool = AttemptPool(limit=2)
    pool.begun = []
    pool.own = []
    engine = SimpleNamespace(inbox=SimpleNamespace(put=pool.begun.append), begin=lambda work: work.close())
    writer = MessageWriter(Settings(database_url="postgresql://none/none", broker_url="redis://none"))
    carrier = SimpleNamespace(effects=None, execute=None, perform=pool.own.append, part_of=writer.part_of)
    pool.serve(carrier, engine)
    pool.capacity.queues = {QUEUE}
    pool.screen = lambda item, _queue: orjson.loads(item)
    consumer = MagicMock(pool=pool, hostname="worker@here")
    consumer.event_dispatcher.enabled = False
    strategy(app.tasks[TASK_ATTEMPT], app, consumer, refusals=None, keys=lambda: None)
    yield pool
    pool.executor.shutdown()


def item():
    return orjson.dumps(published(keys=()))


def test_an_attempt_is_taken_from_its_item(pool):
    assert pool.wants(FIRST.kind, QUEUE)
    assert pool.take_item(item(), QUEUE)
    assert len(pool.begun) == 1
    assert pool.free == 1


def test_an_attempt_of_its_own_is_carried_out_as_it_is(pool):
    pool.take_own(FIRST)
    assert (pool.own, pool.begun, pool.free) == ([FIRST], [], 1)


def test_remote_control_shows_an_attempt_of_its_own_as_one_from_a_message(pool):
    taken = []
    pool._accept = taken.append
    pool.take_own(replace(enqueued(run_id="run").first, address="a"))
    pool.take_item(item(), QUEUE)
    own, read = taken
    assert own.headers == read.headers
    assert own.info() | {"time_start": 0} == read.info() | {"time_start": 0}


def test_an_attempt_of_its_own_counts_as_the_part_of_a_chord_that_its_message_is(pool):
    taken = []
    pool._accept = taken.append
    pool.take_own(replace(enqueued(run_id="run").first, address="f/b/g/x/a", lanes={"f": 1}))
    pool.take_item(orjson.dumps(published(lanes={"f": 1}, keys=())), QUEUE)
    own, read = taken
    assert own.part == read.part
    assert own.part.group_index == 1


def test_a_process_spares_only_slots_that_its_consumer_has_not_requested_messages_for(pool):
    assert pool.spare(FIRST.kind, QUEUE) == 0
    pool._allowed = pool.limit = 40
    assert pool.spare(FIRST.kind, QUEUE) == 40 - MOST_AT_ONCE
    assert pool.spare(FIRST.kind, "another") == 0


def test_a_full_process_wants_nothing(pool):
    assert pool.take_item(item(), QUEUE)
    assert pool.take_item(item(), QUEUE)
    assert not pool.wants(FIRST.kind, QUEUE)


def test_nothing_is_wanted_of_a_queue_that_the_worker_does_not_consume_now(pool):
    """It was paused, stops, or was told to consume others."""
    assert not pool.wants(FIRST.kind, "other")
    pool.capacity.queues = frozenset()
    assert not pool.wants(FIRST.kind, QUEUE)


def test_nothing_is_wanted_past_a_signal_s_receiver(pool):
    def receiver(**_):
        return None

    signals.task_prerun.connect(receiver)
    try:
        assert not pool.wants(FIRST.kind, QUEUE)
    finally:
        signals.task_prerun.disconnect(receiver)


@pytest.mark.parametrize(
    "change",
    [
        {"headers": {}},
        {"headers": None},
        {"headers": {"task": "shop.task", "id": "1"}},
        {"content-type": "application/json"},
        {"content-encoding": None, "body": ""},
        {"body": "W10="},
    ],
)
def test_what_is_no_attempt_of_ours_is_not_taken(pool, change):
    """It goes back, and the consumer does with it what it does with such messages."""
    assert not pool.take_item(orjson.dumps(published(keys=()) | change), QUEUE)
    assert pool.begun == []


def test_what_the_gate_refuses_is_not_taken(pool):
    def refuse(_item, _queue):
        raise WireError("junk")

    pool.screen = refuse
    assert not pool.take_item(b"junk", QUEUE)
