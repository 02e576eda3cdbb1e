"""Durable agents over HTTP, whose workers are killed, freeze, or have no time: what the provider counts is what the run has paid."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.fleet import BRISK, Site, one_process, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.acceptance, one_process]

TURNS, TOOLS = 12, 35
PLACES = [turn * 100 + place for turn in range(1, TURNS) for place in range(5 if turn % 2 else 1)]
REQUESTS = """
SELECT count(*)::int AS n FROM flujo_units
WHERE operation LIKE '%%model.request%%' AND run_id = (SELECT id FROM flujo_runs ORDER BY created_at DESC LIMIT 1)
"""
"""How many requests of the newest run are on record."""
WHERE = ("unit_named", "unit_begun", "during", "unit_answered", "unit_settled")
KILLED = (
    "model:7:during",
    "tool:9:unit_answered",
    "model:11:unit_settled",
    "model:1:unit_begun",
    "model:12:unit_answered",
    "tool:1:unit_named",
    "tool:6:during",
    "tool:35:unit_settled",
)


class Provider(OpenAIServer):
    """A provider that answers by the conversation, and kills, refuses or holds where it is told.

    Attributes:
        kills: the request, by its turn, in which the process in the file `asking` is killed once.
        refuses: the turn that is refused once. freezes: the turn in which that process is stopped.
    """

    def __init__(self, site):
        super().__init__(self.said)
        self._site = site
        self.begin()

    def begin(self, *, kills=None, refuses=None, freezes=None):
        self.kills, self.refuses, self.freezes = kills, refuses, freezes
        self.requests.clear()
        self.answered = Counter()

    @property
    def pid(self):
        return int((self._site.folder / "asking").read_text())

    def said(self, request):
        messages = request.body["messages"]
        turn = 1 + sum(each["role"] == "assistant" for each in messages)
        if turn == self.refuses:
            self.refuses = None
            return Said("overloaded", status=503)
        # A worker announces a request beside sending it, and may not have by now; what is possibly paid are those on record.
        wait_until(lambda: self._site.rows(REQUESTS)[0]["n"] >= turn, what=self._site.log)
        self.answered[turn] += 1
        if turn == self.kills:
            self.kills = None
            os.kill(self.pid, signal.SIGKILL)
        if turn == self.freezes:
            self.freezes = None
            self.frozen = self.pid
            os.kill(self.frozen, signal.SIGSTOP)
            wait_until(lambda: is_stopped(self.frozen), what="some of its threads still run")
        return Said(body=json.dumps(completion(turn, messages)).encode())


def is_stopped(pid):
    """Return whether the threads of a process have stopped: the signal only asks them to."""
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in tasks)
    return False


def completion(turn, messages):
    """Return what the model says in this turn."""
    message = {"role": "assistant", "content": None}
    if turn < TURNS:
        calls = [("look", {"turn": turn, "place": place}) for place in range(5 if turn % 2 else 1)]
        message["tool_calls"] = [
            {"id": f"c{turn}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for n, (name, args) in enumerate(calls)
        ]
    else:
        message["content"] = json.dumps([int(each["content"]) for each in messages if each["role"] == "tool"])
    reason = "tool_calls" if turn < TURNS else "stop"
    return {
        "id": f"chat_{turn}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 100 + turn, "completion_tokens": 10, "total_tokens": 110 + turn},
    }


class Killing:
    """A site whose runs ask the provider."""

    def __init__(self, site, provider):
        self.site, self.provider = site, provider

    def perform(self, prompt, *, workers=2, **begins):
        """Perform the agent, whose dead workers are replaced; return its run and its result."""
        self.provider.begin(**begins)
        fleet = self.site.workers(workers)
        run = self.site.client.enqueue("durable_http_pipelines:research", prompt)
        wait_until(
            lambda: fleet.replace_dead() * 0 or run.status() not in ("queued", "running"), 100, what=self.site.log
        )
        result = run.result(timeout=5)
        self.site.dismiss()
        assert result.run_status == "succeeded", (result.error, self.site.log())
        assert json.loads(result.output) == PLACES
        assert sorted(result.final_pipeline_context.places) == PLACES
        return run, result

    def repeated(self, run):
        """Return how often requests and tools were called again."""
        lines = (self.site.folder / f"calls-{run.id}").read_text().splitlines()
        tools = Counter(line.rsplit(" ", 1)[0] for line in lines)
        assert (len(self.provider.answered), len(tools)) == (TURNS, TOOLS)
        return sum(self.provider.answered.values()) - TURNS, sum(tools.values()) - TOOLS

    def spent(self, run):
        """Return what is on record of all claims: requests, tokens in and out."""
        sql = "SELECT sum(requests)::int AS n, sum(input_tokens)::int AS i, sum(output_tokens)::int AS o FROM flujo_spends WHERE run_id = %(run)s"
        [row] = self.site.rows(sql, run=run.id)
        return Counter(requests=row["n"], read=row["i"], written=row["o"])

    def possibly_paid(self, run):
        """Return how many requests were begun by a claim that has not settled them."""
        sql = "SELECT coalesce(sum(tries - 1), 0)::int AS n FROM flujo_units WHERE run_id = %(run)s AND operation LIKE '%%model.request%%'"
        return self.site.rows(sql, run=run.id)[0]["n"]

    def counted(self):
        """Return what the provider has answered."""
        turns = list(self.provider.answered.elements())
        return Counter(requests=len(turns), read=sum(100 + turn for turn in turns), written=10 * len(turns))


@pytest.fixture(scope="module")
def killing(services, tmp_path_factory):
    with (
        Site(services, tmp_path_factory.mktemp("killing"), worker=BRISK | {"max_lost": 20}) as site,
        Provider(site) as provider,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", provider.url)
        patch.setenv("OPENAI_API_KEY", "none")
        yield Killing(site, provider)


@pytest.fixture(autouse=True)
def own_workers(killing):
    """No test leaves its workers to the next one, even if it fails."""
    yield
    killing.site.dismiss()


def kill(killing, at):
    """Kill a worker there, and compare what was called again and what was paid with what the provider has counted."""
    kind, number, where = at.split(":")
    is_request = kind == "model"
    kills = int(number) if is_request and where == "during" else None
    run, _ = killing.perform("begin" if kills else f"kill:{at}", kills=kills)
    assert [each["fence"] > 1 for each in killing.site.attempts(run.id)] == [True], "its worker was killed"
    requests, tools = killing.repeated(run)
    assert (requests <= 1 and tools <= 1) if is_request else (requests == 0 and tools <= 5)
    possibly, spent, counted = killing.possibly_paid(run), killing.spent(run), killing.counted()
    assert spent["requests"] == TURNS
    missing = counted["requests"] - spent["requests"]
    assert missing == requests <= possibly, (spent, counted, possibly)
    if where == "during" or not requests:
        assert missing == possibly or where in ("unit_named", "unit_begun", "unit_answered"), possibly
    turns = Counter(killing.provider.answered) - Counter(range(1, TURNS + 1))
    assert counted["read"] - spent["read"] == sum((100 + turn) * n for turn, n in turns.items())


@pytest.mark.large
@pytest.mark.parametrize("at", KILLED)
def test_a_killed_agent_pays_again_for_what_was_in_flight(killing, at):
    kill(killing, at)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.chaos
def test_at_every_unit(killing, where):
    for at in [*(f"model:{n}" for n in range(1, TURNS + 1)), *(f"tool:{n}" for n in range(1, TOOLS + 1))]:
        kill(killing, f"{at}:{where}")


@pytest.mark.large
def test_an_outage_at_the_eleventh_request_is_one_request_more(killing):
    run, _ = killing.perform("begin", workers=1, refuses=11)
    assert len(killing.provider.requests) == TURNS + 1
    assert killing.repeated(run) == (0, 0)
    assert killing.spent(run) == killing.counted()


def test_a_worker_that_froze_and_woke_settles_nothing(killing):
    """Of one whose lease ended while it waited for an answer, which it gets when it wakes."""
    site, provider = killing.site, killing.provider
    provider.begin(freezes=6)
    fleet = site.workers(2)
    run = site.client.enqueue("durable_http_pipelines:research", "begin")
    wait_until(lambda: run.status() == "succeeded", 60, what=site.log)
    units = "SELECT * FROM flujo_units WHERE run_id = %(run)s"
    before, spent = site.rows(units, run=run.id), killing.spent(run)
    os.kill(provider.frozen, signal.SIGCONT)
    wait_until(lambda: f"{run.id}::research:1 no longer belongs to this worker" in site.log(), what=site.log)
    assert provider.frozen in fleet.pids
    assert site.rows(units, run=run.id) == before
    late = Counter(requests=1, read=106, written=10)
    assert killing.spent(run) in (spent, spent + late), "an answer that it reads before its lease does is booked"
    (requests, tools), lost = killing.repeated(run), len(site.events(run.id, "attempt.lost"))
    assert requests <= lost
    assert tools <= 5 * (lost - 1)  # a busy machine may have lost the attempt once more, before
    assert spent["requests"] == TURNS
    assert requests == killing.possibly_paid(run)


@contextmanager
def busy(processes):
    """Keep so many processes busy beside it."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in started:
            with suppress(ProcessLookupError):
                each.kill()
            each.wait()


@pytest.mark.chaos
@pytest.mark.parametrize("at", ["model:7:during", "tool:9:unit_answered"])
def test_beside_twenty_busy_processes(killing, at):
    with busy(20):
        kill(killing, at)


def test_a_step_that_is_not_durable_imports_nothing_of_durability(killing):
    site = killing.site
    site.workers(1)
    found = [
        site.client.enqueue(f"plain_agent_pipelines:{name}").result(timeout=60).output for name in ("plain", "durable")
    ]
    assert found[0] == []
    assert "flujo_worker.durable.journal" in found[1]
