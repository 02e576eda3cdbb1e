"""Large values in parts, in every store; and in Postgres what is stored of them, and the result of it when some is lost (ADR 5)."""

import random
from types import SimpleNamespace

import pytest

from flujo_client.gateway import requests
from flujo_client.serial import Packed, dumps, loads, stored_apart
from flujo_worker.store.postgres.blobs import BlobsInPostgres
from flujo_worker.store.postgres.stores import PostgresStores

TEXT = " ".join(random.Random(1).choices(["river", "court", "é", "\0", "seven"], k=80_000))
LOG = [{"turn": number, "text": TEXT[number : number + 5_000]} for number in range(60)]


def version(count, before=None, **fields):
    tree = {"$": "model", "c": "a:B", "v": {"count": count, "text": TEXT, "log": LOG, **fields}}
    return Packed.of(loads(dumps(tree)), like=(before,))


def versions(count):
    made = [version(0)]
    for number in range(1, count):
        made.append(version(number, made[-1]))
    return made


@pytest.fixture
def elsewhere(database_url):
    """The store of another process: it remembers nothing."""
    stores = PostgresStores(database_url).open()
    yield stores
    stores.close()


@pytest.fixture
def bodies(postgres):
    postgres.empty()
    return lambda: {row["digest"]: row["body"] for row in postgres.rows("SELECT digest, body FROM flujo_blobs")}


def test_every_version_comes_back(world):
    made = versions(4)
    for each in made:
        world.stores.blobs.store([each])
    found = world.stores.blobs.fetch([each.digest for each in made])
    assert [found[each.digest].json() for each in made] == [each.json() for each in made]
    assert all(found[each.digest].matches(each.digest) for each in made)


def test_values_of_one_decision_share_their_parts(world):
    world.stores.blobs.store(versions(3))
    assert set(world.stores.blobs.fetch([each.digest for each in versions(3)])) == {each.digest for each in versions(3)}


def test_what_did_not_change_is_stored_once(postgres, bodies):
    first, *rest = versions(20)
    postgres.stores.blobs.store([first])
    before = sum(map(len, bodies().values()))
    for each in rest:
        postgres.stores.blobs.store([each])
    assert sum(map(len, bodies().values())) - before < 19 * 10_000
    assert before > 100_000


def test_another_process_and_a_client_read_it(postgres, bodies, elsewhere):
    made = versions(3)
    postgres.stores.blobs.store(made)
    digests = [each.digest for each in made]
    for read in (elsewhere.blobs.fetch(digests), postgres.ask(requests.blobs(digests)), elsewhere.blobs.fetch(digests)):
        assert {digest: blob.json() for digest, blob in read.items()} == {each.digest: each.json() for each in made}
    after = version(9, elsewhere.blobs.fetch(digests)[digests[2]])
    count = len(bodies())
    elsewhere.blobs.store([after])
    assert len(bodies()) <= count + 2
    assert postgres.ask(requests.blobs([after.digest]))[after.digest].json() == after.json()


def test_values_as_they_were_stored_before_are_read_and_carried_on(postgres, bodies, elsewhere):
    """A whole value under its digest, which is what clients write and older workers wrote."""
    old = version(1)
    postgres.stores.blobs.store([Packed.from_bytes(bytes(old))])
    [found] = elsewhere.blobs.fetch([old.digest]).values()
    assert found == old
    after = version(2, found)
    elsewhere.blobs.store([after])
    assert postgres.stores.blobs.fetch([after.digest]) == {after.digest: version(2)}
    assert bodies()[old.digest][:1] == b"z"


def test_the_whole_of_one_value_may_be_a_part_of_another(postgres, elsewhere):
    inner = [f"{number} {TEXT[:15_000]}" for number in range(30)]
    outer = {"a": {"b": {"c": {"d": {"e": inner}}}}}
    made = [Packed.of(inner), Packed.of(outer)]
    postgres.empty()
    postgres.stores.blobs.store(made)
    assert elsewhere.blobs.fetch([each.digest for each in made]) == {each.digest: each for each in made}


def test_a_part_that_is_gone_is_stored_again_with_the_next_version(postgres, bodies, elsewhere):
    """Who remembers a part takes it for stored: what Postgres has no longer must not be pointed at."""
    first, second = versions(2)
    postgres.stores.blobs.store([first])
    postgres.execute("DELETE FROM flujo_blobs WHERE digest LIKE 'part:%'")
    postgres.stores.blobs.store([second])
    assert stored_apart(second).keys() <= bodies().keys()
    assert elsewhere.blobs.fetch([second.digest]) == {second.digest: second}


def test_a_part_that_is_shared_is_touched(postgres, bodies):
    first, second = versions(2)
    postgres.stores.blobs.store([first])
    postgres.execute("UPDATE flujo_blobs SET touched_at = now() - interval '1 day'")
    postgres.stores.blobs.store([second])
    keys = list(stored_apart(second))
    old = "SELECT digest FROM flujo_blobs WHERE digest = ANY(%(keys)s) AND touched_at < now() - interval '1 hour'"
    assert postgres.rows(old, keys=keys) == []


@pytest.mark.parametrize("kind", ["a part", "the manifest", "a part is missing"])
def test_what_does_not_fit_its_digest_counts_as_missing(postgres, elsewhere, kind):
    made = version(1)
    postgres.empty()
    other = version(2)
    postgres.stores.blobs.store([made, other])
    if kind == "a part":
        postgres.execute("UPDATE flujo_blobs SET body = 'j1' WHERE digest LIKE 'part:%'")
    elif kind == "the manifest":
        body = "SELECT body FROM flujo_blobs WHERE digest = "
        postgres.execute(f"UPDATE flujo_blobs SET body = ({body}'{other.digest}') WHERE digest = '{made.digest}'")
    else:
        postgres.execute("DELETE FROM flujo_blobs WHERE digest LIKE 'part:%'")
    assert elsewhere.blobs.fetch([made.digest]) == {}


def test_what_was_stored_is_not_sent_again():
    sent = []

    def rows(_name, parameters, **_):
        sent.append(sum(map(len, parameters["bodies"])))
        return []

    blobs = BlobsInPostgres(SimpleNamespace(rows=rows))
    for each in versions(4):
        blobs.store([each])
    assert sent[0] > 100_000
    assert max(sent[1:]) < 10_000
