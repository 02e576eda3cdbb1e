"""Readers of streams, whatever is trimmed, flushed, away or disconnected: nothing lost without a gap, nothing twice, always an end.

The stream, its script, the hub's thread and the rows are played here; the rules, the operations and the feeds are the real ones.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flujo_client.contract.records import RunRecord
from flujo_client.contract.stream import BEGINNING, Cursor, pack_data, place_of
from flujo_client.gateway.effects import AwaitNews
from flujo_client.serial import Packed
from flujo_client.streams.follow import RunStream
from flujo_client.streams.hub import Feed

STEPS = ("a", "b")
BATCH = 3
RUN = RunRecord("r", "m:p", "f", "p", "1", "running", datetime.now(UTC), settings={"stream": "all"})


def delta(text):
    return {"event_kind": "part_delta", "delta": {"part_delta_kind": "text", "content_delta": text}}


class World:
    """A run, its stream, and the workers that write it."""

    def __init__(self):
        self.entries, self.claims, self.is_away, self.has_ended = [], {}, False, False
        self.epochs, self.low, self.high = 100, 100, 100
        self.tokens, self.dropped, self.flushed = 0, set(), set()
        self.said, self.merged, self.claim, self.before = defaultdict(list), {}, dict.fromkeys(STEPS, 1), {}

    def write(self, step, *kinds, fence=None):
        """What `write.lua` does."""
        fence, place = fence or self.claim[step], place_of("", step)
        if self.is_away:
            return False
        epoch, seq = self.entries[-1][0] if self.entries else (self.epochs, 0)
        had_fence, state = self.claims.get(place, (0, "empty"))
        if had_fence > fence or (had_fence == fence and state in ("ended", "withdrawn")):
            return False

        def append(kind, data):
            nonlocal seq
            seq += 1
            fields = {b"k": kind.encode(), b"p": place.encode(), b"n": b"1", b"d": pack_data(data)}
            self.entries.append((Cursor(epoch, seq), fields))

        if state == "open" and had_fence < fence:
            append("withdrawn", {})
        if self.before.get((step, fence), epoch) != epoch:
            append("gap", {})
        self.before[step, fence] = epoch
        for kind, data in kinds:
            append(kind, data)
            state = {"step_end": "ended", "withdrawn": "withdrawn"}.get(kind, "open")
        self.claims[place] = (fence, state if kinds else "empty")
        return True

    def say(self, step):
        if step not in self.merged:
            self.tokens += 1
            self.said[step].append(str(self.tokens))
            if not self.write(step, ("token", delta(f"{self.tokens} "))):
                self.lose(step)

    def lose(self, step):
        """The stream has not all that this claim says, or more."""
        self.dropped.add((step, self.claim[step]))

    def drop(self, step):
        if step not in self.merged:
            self.tokens += 1
            self.said[step].append(str(self.tokens))
            self.write(step, ("gap", {})) or self.lose(step)

    def take_over(self, step):
        if step not in self.merged:
            self.claim[step] += 1
            self.said[step] = []
            self.say(step)

    def late(self, step):
        if self.claim[step] > 1 and self.write(step, ("token", delta("late ")), fence=self.claim[step] - 1):
            self.lose(step)  # Redis knows of no later claim since it was flushed

    def merge(self, step, *, tells=True):
        if step not in self.merged:
            self.merged[step] = " ".join(self.said[step])
            if tells:
                self.write(step, ("step_end", {}))

    def flush(self, by):
        self.flushed |= self.begun()
        self.entries, self.claims = [], {}
        if by < 0:
            self.low -= 1
        else:
            self.high += 1
        self.epochs = self.low if by < 0 else self.high

    def begun(self):
        return {(step, self.claim[step]) for step in STEPS if self.said[step]}

    def trim(self, many):
        self.entries = self.entries[many:] or self.entries[-1:]

    def rows(self, request):
        if request.name == "run":
            return RUN if not self.has_ended else RunRecord(*[getattr(RUN, each) for each in _POSITIONAL], **_ENDED)
        places = request.parameters["places"]
        found = [
            {"address": "", "step": step, "attempt": 1, "status": "succeeded", "output": Packed.of(text).stored}
            for step, text in self.merged.items()
            if places is None or place_of("", step) in places
        ]
        return request.read(found)


_POSITIONAL = ("id", "reference", "fingerprint", "name", "version")
_ENDED = {"status": "cancelled", "created_at": RUN.created_at, "settings": RUN.settings}


class Consumer:
    """Someone who reads, is disconnected, and goes on behind the last event."""

    def __init__(self, world):
        self.world, self.seen, self.text, self.ends = world, set(), defaultdict(list), {}
        self.holes, self.last, self.is_over, self.given = set(), None, False, set()
        self.read_now: set[str] = set()
        """The steps whose text has come over this connection."""
        self.connect()

    def connect(self):
        at = BEGINNING if self.last is None else Cursor.parse(self.last)
        self.feed = Feed(("stream", "claims"), at)
        self.stream = RunStream("r", self.feed)
        if self.world.has_ended:
            self.stream.notice()
        self.operation, self.given, self.read_now = None, set(), set()

    def read(self, *, many=10_000, idle=False):
        """Read until nothing comes; after `many` events the connection breaks."""
        answer = not idle
        while not self.is_over:
            if self.operation is None:
                self.operation = self.stream.next_page()
                self.effect = next(self.operation, None)
            try:
                if isinstance(self.effect, AwaitNews):
                    if not (self.hub() or idle):
                        return None
                    idle = False
                    self.effect = self.operation.send(answer)
                    answer = True
                else:
                    self.effect = self.operation.send(self.world.rows(self.effect.request))
            except StopIteration as end:
                self.operation = None
                for event in end.value:
                    if not many:
                        return self.connect()
                    many -= 1
                    self.take(event)
        return None

    def hub(self):
        if self.world.is_away:
            moved = bool(self.feed.asked())
            if moved:
                self.feed.answer_away()
            return moved
        fresh = [
            (cursor, (str(cursor).encode(), fields)) for cursor, fields in self.world.entries if cursor > self.feed.at
        ]
        self.feed.give(fresh[:BATCH])
        if wants := self.feed.asked():
            claims = {
                place.encode(): f"1 {fence} {state}".encode() for place, (fence, state) in self.world.claims.items()
            }
            last = self.world.entries[-1][0] if self.world.entries else None
            self.feed.answer(last, claims if wants == "claims" else None)
        return bool(fresh or wants)

    def take(self, event):
        assert not self.is_over
        if self.last is None:  # who begins after a flush cannot know of it
            self.holes |= self.world.flushed
        self.last = event.cursor
        if event.kind == "gap":
            self.holes |= self.world.begun()
            self.text.clear()
        elif event.kind == "snapshot":
            steps = [each["step"] for each in event.data["steps"]]
            assert len(steps) == len({*steps})
            self.ends |= {each["step"]: each["output"] for each in event.data["steps"]}
            self.given |= self.ends.keys()
        elif event.kind == "token":
            token = event.text.strip()
            assert token not in self.seen - {"late"}
            assert event.step not in self.given
            assert event.step not in self.ends  # nor over a new connection
            self.read_now.add(event.step)
            self.seen.add(token)
            self.text[event.step].append(token)
        elif event.kind == "withdrawn":
            self.text.pop(event.step, None)
        elif event.kind == "step_end":
            assert event.step not in self.given  # over a new connection, an end may be given again
            self.given.add(event.step)
            self.ends[event.step] = event.data["output"]
            if (event.step, self.world.claim[event.step]) not in self.holes | self.world.dropped:
                text = " ".join(self.text[event.step])
                assert event.data["output"].startswith(text)
                assert text == event.data["output"] or event.step not in self.read_now
        elif event.kind == "end":
            self.is_over = True


def drawn(random):
    """Draw what happens."""
    step = random.choice(STEPS)
    kinds = ("say", "say", "say", "take_over", "drop", "late", "merge", "flush", "trim", "away", "read", "read", "read")
    match random.choice(kinds):
        case "merge":
            return "merge", step, random.random() < 0.6
        case "flush":
            return "flush", random.choice([1, 1, -1])
        case "trim":
            return "trim", random.randint(1, 5)
        case "away":
            return "away", random.random() < 0.3
        case "read":
            return "read", random.choice([10_000, 10_000, random.randint(0, 4)]), random.random() < 0.5
        case kind:
            return kind, step


def play(actions):
    world = World()
    consumer = Consumer(world)
    for action, *given_ in actions:
        if action == "read":
            consumer.read(many=given_[0], idle=given_[1])
        elif action == "away":
            world.is_away = given_[0]
        elif action == "merge":
            world.merge(given_[0], tells=given_[1])
        else:
            getattr(world, action)(*given_)
    world.has_ended = True
    consumer.stream.notice()
    return world, consumer


@given(st.integers(0, 2**32))
def test_nothing_is_lost_without_a_gap_nothing_comes_twice_and_all_ends(seed):
    random = Random(seed)
    for _ in range(10):
        actions = [drawn(random) for _ in range(random.randint(1, 40))]
        note(actions)
        world, consumer = play(actions)
        for _ in range(20):
            consumer.read(idle=True)
        assert consumer.is_over
        assert consumer.ends == world.merged
        assert consumer.text.keys() <= world.merged.keys()
