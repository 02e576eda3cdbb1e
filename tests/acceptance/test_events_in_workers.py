"""Events over real workers: a wait occupies nobody, and an event takes effect once, whoever sends it and whatever dies meanwhile (ADR 58)."""

import asyncio
import socket
import threading

import httpx
import psycopg
import pytest
import uvicorn
from click.testing import CliRunner
from pydantic import SecretStr

from flujo_client import AsyncFlujoClient
from flujo_client.cli.main import cli
from flujo_client.errors import EventError
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.events import MAX_BODY_BYTES
from tests.support.fleet import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(signing_keys={"k": SecretStr("a key of the tests: 32 bytes or more")}),
]


def waiting(site, **options):
    """A run that waits for its event."""
    run = site.client.enqueue("event_pipelines:pays", 0, **options)
    wait_until(lambda: run.status() == "paused", what=site.log)
    return run


def output(site, run):
    result = run.result(timeout=PATIENCE_S, check=False)
    assert result.run_status == "succeeded", site.log()
    assert [len(site.executions(run.id, step)) for step in ("start", "finish")] == [1, 1]
    return result.output


def test_workers_are_killed_and_redis_is_emptied_while_a_run_waits(site):
    """The event comes while nobody is there, and with it the loss of what asked for a sweep."""
    site.standing().kill()
    site.dismiss()
    site.standing()
    run = waiting(site)
    site.standing().kill()
    site.dismiss()
    seen = run.explain()
    assert (seen.cause, seen.text) == ("event", "Waits at pay for event paid.")
    assert run.approvals() == run.questions() == site.client.approvals() == []
    assert run.send("paid", {"amount": 3}, id="a", actor="bank") == "a"
    site.redis.flushdb()
    site.standing()
    assert output(site, run) == 3
    assert run.send("paid", {"amount": 3}, id="a") == "a", "also after the end"
    with pytest.raises(EventError) as refused:
        run.send("paid", {"amount": 3})
    assert refused.value.error_code == "RUN_ENDED"
    assert [each["data"]["actor"] for each in site.events(run.id, "run.event_sent")] == ["bank"]


@pytest.mark.parametrize("point", ["after_claim", "before_commit", "answer_lost"])
def test_a_worker_dies_with_the_event_in_hand(site, point, tmp_path):
    site.standing()
    run = waiting(site)
    site.dismiss()
    run.send("paid", {"amount": 4})
    doomed = site.unready_workers(1, failpoints=f"{point}:kill:{tmp_path / point}")
    wait_until(lambda: not doomed.pids, what=site.log)
    site.standing()
    assert output(site, run) == 4


def test_an_event_is_part_of_the_callers_transaction(site):
    """It is there if and only if that commits, for a run of the same transaction too; and it comes before its step."""
    site.standing()
    run = waiting(site)
    with psycopg.connect(site.settings.database()) as connection:
        run.send("paid", {"amount": 1}, id="a", connection=connection)
        connection.rollback()
        early = site.client.enqueue("event_pipelines:pays", 0, connection=connection)
        early.send("paid", {"amount": 2}, connection=connection)
        run.send("paid", {"amount": 5}, id="a", connection=connection)
        with psycopg.connect(site.settings.database(), autocommit=True) as other:
            assert other.execute("SELECT count(*) FROM flujo_inputs WHERE run_id = %s", [run.id]).fetchone() == (0,)
    assert (output(site, run), output(site, early)) == (5, 2)


async def send_twice(settings, run_id):
    async with AsyncFlujoClient(settings) as client:
        run = await client.get_run(run_id)
        await run.send("paid", {"amount": 6}, id="x")
        with pytest.raises(EventError, match="with another value"):
            await run.send("paid", {"amount": 7}, id="x")


def test_the_async_client_and_the_command_line_send(site):
    site.standing()
    runs = [waiting(site), waiting(site)]
    asyncio.run(send_twice(site.settings, runs[0].id))
    own = {"FLUJO_DATABASE_URL": site.settings.database(), "FLUJO_BROKER_URL": site.settings.broker()}
    command = ["send", runs[1].id, "paid", "--input-json", '{"amount": 8}', "--id", "y"]
    done = CliRunner().invoke(cli, command, env=own)
    assert (done.exit_code, done.stdout) == (0, "y\n"), done.output
    assert [output(site, run) for run in runs] == [6, 8]


@pytest.fixture
def page(site):
    """The page, served over HTTP to hosts that it does not know."""
    app = flujo_ui(site.client, auth=lambda _: None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def test_a_webhook_sends_by_its_token_alone(site, page):
    site.standing()
    run = waiting(site)
    token, expired = run.event_token("paid"), run.event_token("paid", expires_s=0)
    for wrong in (-1, "x", float("nan")):
        with pytest.raises(EventError, match=r"`expires_s` must be a number of seconds from 0 to .*, got"):
            run.event_token("paid", expires_s=wrong)

    def post(token, body, **headers):
        answer = httpx.post(
            f"{page}/events/{token}", content=body, headers={"origin": "https://bank.example", **headers}
        )
        return answer.status_code, answer.json().get("error", answer.json()).get("code", answer.json().get("id"))

    once = {"idempotency-key": "w1"}
    assert post(token[:-1] + "A", b"1") == post("nothing", b"1") == (403, "BAD_TOKEN")
    assert post(expired, b"1") == (403, "TOKEN_EXPIRED")
    assert post(token, b"{") == (400, "INVALID_JSON")
    assert post(token, b"[" * 100_000) == (400, "INVALID_JSON")
    assert post(token, b" " * (MAX_BODY_BYTES + 1)) == (413, "BODY_TOO_LARGE")
    assert post(token, b'{"amount": "much"}') == post(token, b"") == (422, "EVENT_REFUSED")
    assert post(run.event_token("other"), b"1") == (422, "UNKNOWN_EVENT")
    assert post(token, b'{"amount": 9}', **once) == post(token, b'{"amount": 9}', **once) == (202, "w1")
    assert post(token, b'{"amount": 10}', **once) == (409, "EVENT_CONFLICT")
    assert httpx.get(f"{page}/events/{token}").status_code in (401, 405)
    assert output(site, run) == 9
    assert post(token, b'{"amount": 9}') == (410, "RUN_ENDED")
