"""Values that are encrypted in Postgres and in messages, and the rotation of their keys."""

import base64
import json

import pytest
from psycopg import sql
from pydantic import SecretStr
from secret_pipelines import MARK, ROWS

from flujo_client import FlujoClient
from flujo_client.serial import use_cipher
from flujo_worker.store.reencrypt import reencrypt
from tests.support.fleet import PATIENCE_S, STEADY, Site, wait_until

pytest.importorskip("cryptography")
pytestmark = pytest.mark.acceptance

SECRETS = {"old": "the secret of last year: 32 bytes or more", "new": "the secret of this year: 32 bytes or more"}
COLUMNS = """
SELECT c.relname, a.attname, a.atttypid = 'bytea'::regtype AS is_bytes FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind = 'r' AND starts_with(c.relname, 'flujo_') AND a.attnum > 0
  AND a.atttypid IN ('bytea'::regtype, 'text'::regtype, 'jsonb'::regtype)
"""


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker=STEADY, value_keys=keys("old"), log={"prompts": "off"}) as site:
        yield site
    use_cipher(None)


def keys(*names):
    return {name: SecretStr(SECRETS[name]) for name in names}


def rotate(site, *names):
    """Restart workers and client with these keys."""
    site.dismiss()
    site.client.close()
    use_cipher(None)
    site.settings = site.settings.model_copy(update={"value_keys": keys(*names)})
    site.client = FlujoClient(site.settings)


def paused_run(site):
    run = site.client.enqueue("secret_pipelines:file", MARK, context={"name": MARK})
    run.send("go", MARK)
    wait_until(run.approvals, what=site.log)
    return run.id


def end(site, run):
    handle = site.client.get_run(run)
    handle.resume(MARK)
    result = handle.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output) == ("succeeded", MARK), site.log()
    assert (result.final_pipeline_context.name, result.final_pipeline_context.count) == (MARK, ROWS)
    assert result.final_pipeline_context.rows[-1] == f"{MARK} {ROWS - 1}"


def units(site):
    """Return of each kind of unit whether its results are stored apart."""
    rows = site.rows(
        "SELECT operation ~ 'call_tool' AS is_tool, convert_from(substr(answer, 1, 1), 'SQL_ASCII') AS form FROM flujo_units"
    )
    return {("tool" if row["is_tool"] else "request", row["form"] == "#") for row in rows}


def readable(site):
    """Where the secret can be read."""
    found = []
    for row in site.rows(COLUMNS):
        contains = "position(%(mark)s::text::bytea IN {})" if row["is_bytes"] else "strpos({}::text, %(mark)s)"
        column, table = sql.Identifier(row["attname"]), sql.Identifier(row["relname"])
        query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} > 0) AS is_there").format(
            table, sql.SQL(contains).format(column)
        )
        with site.connection() as connection:
            if connection.execute(query, {"mark": MARK}).fetchone()["is_there"]:
                found.append((row["relname"], row["attname"]))
    messages = [base64.b64decode(json.loads(each)["body"]) for each in site.redis.lrange("nowhere", 0, -1)]
    return found + (["message"] if any(MARK.encode() in each for each in messages) else [])


def test_values_are_encrypted_while_keys_rotate(site):
    site.standing()
    first, second = paused_run(site), paused_run(site)
    later = site.client.enqueue("secret_pipelines:file", MARK, queue="nowhere")
    later.send("go", MARK)
    assert readable(site) == []
    assert units(site) == {("request", False), ("tool", True)}
    end(site, first)
    assert readable(site) == []

    rotate(site, "new", "old")
    site.standing()
    end(site, second)
    third = paused_run(site)
    assert site.client.get_run(first).result(timeout=0).output == MARK
    end(site, third)

    assert sum(reencrypt(site.settings.database())) > 0
    assert sum(reencrypt(site.settings.database())) == 0

    rotate(site, "new")
    site.standing()
    site.workers(arguments=["-Q", "nowhere"])
    for run in (first, second, third):
        assert site.client.get_run(run).result(timeout=0).final_pipeline_context.name == MARK
    wait_until(site.client.get_run(later.id).approvals, what=site.log)
    end(site, later.id)


def test_values_from_before_there_were_keys_are_encrypted(site):
    use_cipher(None)
    site.client.enqueue("secret_pipelines:file", MARK, queue="nowhere")
    assert {("flujo_runs", "input"), "message"} <= {*readable(site)}
    rotate(site, "new")
    assert sum(reencrypt(site.settings.database())) > 0
    assert readable(site) == ["message"]
