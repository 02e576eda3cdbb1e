"""A user of Redis with one key prefix, its channels and the documented commands: it carries everything, and the doctor says what it lacks."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.transport.redis import rules
from flujo_worker.celery_app.app import FlujoWorker
from tests.support.fleet import BRISK, PATIENCE_S, Site, assert_merged_once, wait_until
from tests.support.services import fresh_redis

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

DEPLOY = Path(__file__).parents[2] / "docs/how-to/deploy.md"
USER, PREFIX = "shop0", "shop0:"


@pytest.fixture(scope="module")
def admin(services):
    with redis.Redis.from_url(services.broker_url, decode_responses=True) as client:
        yield client
        client.execute_command("ACL", "DELUSER", USER)


@pytest.fixture
def allow(admin):
    """Give the user these rules and no others."""

    def allow(text):
        admin.execute_command("ACL", "SETUSER", USER, "reset", "on", ">secret", *text.split())
        admin.execute_command("ACL", "LOG", "RESET")

    return allow


@pytest.fixture(scope="module")
def site(services, admin, tmp_path_factory):
    place = urlsplit(fresh_redis(services))
    admin.execute_command("ACL", "SETUSER", USER, "reset", "on", ">secret")  # the client connects to enqueue
    url = place._replace(netloc=f"{USER}:secret@{place.hostname}:{place.port}").geturl()
    folder = tmp_path_factory.mktemp("site")
    with (
        redis.Redis.from_url(place.geturl(), decode_responses=True) as everything,
        Site(services, folder, worker=BRISK, broker_url=url, broker_key_prefix=PREFIX) as site,
    ):
        site.everything, site.database = everything, int(place.path[1:])
        yield site


def doctor(site):
    told = CliRunner().invoke(cli, ["doctor", "--json"], env=site.settings.as_environment())
    return [
        each for each in json.loads(told.stdout)["findings"] if each["thing"] == "redis" and each["level"] == "error"
    ]


def test_fan_outs_questions_cancels_and_remote_control_need_no_more(site, admin, allow):
    allow(rules(PREFIX, site.database))
    site.workers(1)
    asked = site.client.enqueue("human_pipelines:approval", [])
    [lanes, three, cancelled] = [site.enqueue(name) for name in ("branch_fails", "three", "waiting")]
    assert_merged_once(site, three, ["first", "second", "third"])
    assert lanes.result(timeout=PATIENCE_S).status == "completed"
    site.wait_for_execution(cancelled.id, "gate")
    cancelled.cancel()
    wait_until(lambda: asked.status() == "paused", what=site.log)
    asked.resume({"approved": True})
    assert asked.result(timeout=PATIENCE_S).run_status == "succeeded"
    assert cancelled.result(timeout=PATIENCE_S).run_status == "cancelled"
    pinged = FlujoWorker(settings=site.settings).app.control.inspect(timeout=10).ping()
    assert [*pinged.values()] == [{"ok": "pong"}]
    assert [(each["reason"], each["object"]) for each in admin.acl_log() if each["username"] == USER] == []
    assert doctor(site) == []
    assert [key for key in site.everything.keys() if not key.startswith(PREFIX)] == []  # noqa: SIM118 - Redis's command


@pytest.mark.parametrize(
    ("without", "lacks"),
    [
        ("keys", "keys {}*"),
        ("channels", "channels {}*"),
        ("remote", "channel {}/"),
        ("+@scripting", "EVALSHA, SCRIPT"),
        ("+@write", "LPUSH, RPUSH, RPOP and"),
        ("+@transaction", "MULTI"),
    ],
)
def test_the_doctor_says_what_a_user_lacks(site, allow, without, lacks):
    given = rules(PREFIX, site.database)
    remote = next(each for each in given.split() if each.endswith("pidbox"))
    left_out = {"keys": f"~{PREFIX}*", "channels": f"&{PREFIX}*", "remote": remote}.get(without, without)
    allow(" ".join(each for each in given.split() if each != left_out))
    [finding] = doctor(site)
    assert finding["what"].startswith(f"the user lacks {lacks.format(PREFIX)}")
    assert finding["change"] == f"ACL SETUSER {USER} {given}"
    assert site.everything.keys(f"{PREFIX}flujo:doctor") == [], "it has changed something"


def test_the_documentation_has_these_rules():
    [line] = re.findall(r"^ACL SETUSER shop on >\S+ (.+)$", DEPLOY.read_text(), re.MULTILINE)
    assert line == rules("shop:", 0)
