"""A real fleet that is brought to every stop of `truths.py`: Postgres, Redis, workers as processes, and a model's provider over HTTP."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from stops import HTML
from truths import STOPS

from tests.support.fleet import Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

HERE = Path(__file__).parent
PATIENCE_S = 60.0
ORDINARY = "flujo.attempts"
QUEUES = (ORDINARY, "single", "poison", "shaky", "doomed", "revived")
SETTINGS = {
    "worker": {"lease_s": 6.0, "renew_s": 0.5, "sweep_s": 0.5, "max_lost": 1},
    "budgets": {"tenant": {"thrifty": {"total_cost_usd_limit": 0.05}}},
    "breakers": {"failures": 2, "recovery_s": 900},
    "rate_limits": {"models": {"openai:slow-*": {"requests_per_minute": 1}}},
    "aros": {"correction_ledger_enabled": True},
    "log": {"prompts": "full"},
}
GONE = """
from flujo_client import Pipeline, Step

pipeline = Pipeline([Step("hello", str.upper)], name="gone")
"""
SCORING = """
from flujo_client import Pipeline, Step

pipeline = Pipeline([Step("collect", str.upper), Step("{step}", str.lower)], name="scoring", on_change="park")
"""
UNTIDY = """Sure, here is my judgement:
```json
{'sentiment': 'angry', "score": "8", 'tags': ['billing', 'double charge',],}
```
Anything else?"""


def answer(request):
    """What the provider answers, by the model's name."""
    match request.body["model"].partition("-")[0], request.body["model"]:
        case "down", _:
            return Said("the server is overloaded", status=503)
        case "busy", name:
            return Said(f"rate limit reached for {name}", status=429, headers=(("retry-after", "1200"),))
        case "odd", _:
            return Said('{"sentiment": "angry", "score": 42, "tags": "billing"}')
        case "untidy", _:
            return Said(UNTIDY)
        case "evil", _:
            return Said(HTML)
    return Said("The customer was charged twice.")


class StoppedFleet:
    """A site, its workers by their queue, and the runs by the names of their stops.

    Attributes:
        runs: by the names of their stops.
        sentences: by the ids of the runs, as they were when all had stopped: some runs move by themselves after that.
    """

    def __init__(self, site, code):
        self.site, self._code = site, code
        self.runs, self.sentences = {}, {}
        self._begun, self._settled = set(), set()
        self._queues = {}

    def start(self):
        """Start a worker for each queue; what harms its process has one of its own."""
        for queue in QUEUES:
            own = () if queue == ORDINARY else ("-Q", queue, "--concurrency", "1")
            self._queues[queue] = self.site.unready_workers(arguments=own, code=self._code)
        for fleet in self._queues.values():
            wait_until(lambda fleet=fleet: self.site.works(fleet), what=self.site.log)

    def kill(self, queue):
        """End the workers of a queue as a power cut would."""
        self._queues[queue].kill()

    def enqueue(self, name):
        stop = STOPS[name]
        options = {"tenant": "acme", **stop.options}
        self.runs[name] = self.site.client.enqueue(stop.reference, stop.value, **options)

    def all_settled(self):
        """Take every stop as far as its rows allow, and tell whether each has come to its stop."""
        for queue in ("poison", "shaky", "revived"):
            self._queues[queue].replace_dead()
        for name, stop in STOPS.items():
            if name not in self.runs and self._begun.issuperset(stop.after):
                self.enqueue(name)
            if name in self.runs and name not in self._begun and self._holds(name, stop.begun or stop.settled):
                self._begun.add(name)
                if stop.act is not None:
                    stop.act(self, self.runs[name])
            if name in self._begun and name not in self._settled and self._holds(name, stop.settled):
                self._settled.add(name)
        return len(self._settled) == len(STOPS)

    def _holds(self, name, condition):
        sql = f"SELECT 1 AS one FROM flujo_runs r WHERE r.id = %(run)s AND ({condition})"
        return bool(self.site.rows(sql, run=self.runs[name].id))

    def unsettled(self):
        """What is still missing, for a failure's message."""
        lacking = {name: self.runs.get(name) for name in STOPS if name not in self._settled}
        return f"{lacking}\n{self.site.log()}"

    def workers(self):
        """Return the id of every worker that there was, the longest first: those of processes apart begin as their worker's does."""
        return [row["id"] for row in self.site.rows("SELECT id FROM flujo_workers ORDER BY length(id) DESC")]

    def named(self):
        """Return the name of each run by its id, child runs included."""
        names = {run.id: name for name, run in self.runs.items()}
        rows = self.site.rows("SELECT id, name, parent_run FROM flujo_runs WHERE parent_run IS NOT NULL")
        return names | {row["id"]: f"{names[row['parent_run']]}/{row['name']}" for row in rows}


@contextmanager
def stopped_fleet(services, folder):
    """Bring a fleet to all its stops, and keep it there."""
    old, new = folder / "old", folder / "new"
    old.mkdir()
    new.mkdir()
    (old / "gone.py").write_text(GONE)
    (old / "scoring.py").write_text(SCORING.format(step="score"))
    (new / "scoring.py").write_text(SCORING.format(step="rank"))
    with (
        OpenAIServer(answer) as provider,
        Site(services, folder, **SETTINGS) as site,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", provider.url)
        patch.setenv("OPENAI_API_KEY", "none")
        fleet = StoppedFleet(site, os.pathsep.join([str(new), str(HERE)]))
        with pytest.MonkeyPatch.context() as before:
            before.syspath_prepend(old)
            for name in ("import", "changed code"):
                fleet.enqueue(name)
        for module in ("gone", "scoring"):
            sys.modules.pop(module)
        fleet.start()
        wait_until(fleet.all_settled, PATIENCE_S, what=fleet.unsettled)
        fleet.sentences = site.client.explain([run.id for run in fleet.runs.values()])
        yield fleet
