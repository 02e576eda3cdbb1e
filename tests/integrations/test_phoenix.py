"""What Arize Phoenix shows of a run: from its wheels, in an environment of its own, it reads back the tree, the tokens and the cost."""

import json
import os
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError

import pytest

from flujo_client.trace_context import trace_id
from tests.bench.peers.installing import install
from tests.support.fleet import wait_until

pytestmark = [pytest.mark.integrations, pytest.mark.services, pytest.mark.acceptance, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "phoenix"
PACKAGE = "arize-phoenix==20.26.1"
SPANS = "/v1/projects/default/spans?limit=1000"
COSTS = "{projects {edges {node {spans(first: 100) {edges {node {costSummary {total {tokens cost}}}}}}}}}"


class Phoenix:
    """Phoenix as its documentation starts it, on two free ports."""

    def __init__(self, folder):
        with ExitStack() as stack:
            free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        self.url = f"http://127.0.0.1:{free[0]}"
        own = {
            "HOST": "127.0.0.1",
            "PORT": free[0],
            "GRPC_PORT": free[1],
            "WORKING_DIR": folder,
            "TELEMETRY_ENABLED": "false",
        }
        environment = os.environ | {f"PHOENIX_{name}": str(value) for name, value in own.items()}
        self._log = folder / "phoenix.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [CACHE / "bin" / "phoenix", "serve"], env=environment, stdout=log, stderr=log
            )

    def log(self):
        return self._log.read_text()[-2000:]

    def ask(self, path, query=None):
        """Return what it answers; None if it does not."""
        body = None if query is None else json.dumps({"query": query}).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except (URLError, OSError):
            return None

    def totals(self):
        """Return the tokens of each call of a model, and its cost by Phoenix's own prices."""
        [project] = self.ask("/graphql", COSTS)["data"]["projects"]["edges"]
        costs = [span["node"]["costSummary"] for span in project["node"]["spans"]["edges"]]
        return sorted(tuple(each["total"].values()) for each in costs if each)


@pytest.fixture
def phoenix(tmp_path):
    if not (CACHE / "bin" / "phoenix").exists() and (done := install(CACHE, (PACKAGE,))).returncode:
        pytest.skip(f"{PACKAGE} does not install from wheels: {done.stderr.strip()[-300:]}")
    phoenix = Phoenix(tmp_path)
    try:
        wait_until(lambda: phoenix.ask("/openapi.json"), 300, what=phoenix.log)
        yield phoenix
    finally:
        phoenix.process.terminate()
        phoenix.process.wait(60)


def test_it_reads_back_the_tree_the_tokens_and_the_cost_of_a_run(site, phoenix, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", phoenix.url)
    site.workers(1, code=HERE)
    run = site.client.enqueue("phoenix_shop:research", "bees")
    assert run.result(timeout=60).success, site.log()
    found = wait_until(lambda: (found := phoenix.ask(SPANS)) and len(found["data"]) == 6 and found, what=site.log)
    spans = {each["context"]["span_id"]: each for each in found["data"]}
    assert {each["context"]["trace_id"] for each in spans.values()} == {trace_id(run.id, None)}

    def path(span):
        above = spans.get(span["parent_id"])
        return (*(path(above) if above else ()), span["name"])

    inside = ("research", "find", "attempt 1")
    chat, tool = (*inside, "chat gpt-4o-mini"), (*inside, "execute_tool look_up")
    assert sorted(map(path, spans.values())) == sorted([inside[:1], inside[:2], inside, chat, chat, tool])
    kinds = {span["name"]: span["span_kind"] for span in spans.values()}
    assert kinds.items() >= {"attempt 1": "AGENT", "chat gpt-4o-mini": "LLM", "execute_tool look_up": "TOOL"}.items()
    totals = wait_until(
        lambda: len(found := phoenix.totals()) == 2 and found, what=phoenix.log
    )  # it works them out later
    assert [(tokens, round(cost, 9)) for tokens, cost in totals] == [(1100, 0.00021), (2300, 0.00048)]
