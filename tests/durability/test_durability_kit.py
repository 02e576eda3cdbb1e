"""The conformance kit on our engine: three cases, and all of them with the slow tests."""

import pytest

from flujo_worker.testing.durability import CASES, judge
from tests.durability.ours import FlujoEngine
from tests.support.fleet import BRISK, Site, one_process

pytestmark = [pytest.mark.acceptance, one_process]

QUICK = ("equal agents at once",)


@pytest.fixture(scope="module")
def engine(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("kit"), worker=BRISK | {"max_lost": 20}) as site:
        yield FlujoEngine(site)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.large]) for case in CASES],
)
def test_our_engine_keeps(engine, case):
    verdict = judge(engine, case)
    if verdict.word == "skipped":
        pytest.skip(verdict.detail)
    assert str(verdict) == "kept", verdict
