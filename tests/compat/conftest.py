"""Which Postgres the matrix runs on, and where its pipelines are."""

import os
import sys
from pathlib import Path

import pytest

from tests.compat import POSTGRES
from tests.support.fleet import STEPS

sys.path += [str(STEPS), str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def chosen_postgres():
    """Run the server whose programs are in the folder that the environment names, in place of the wheel's."""
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get(POSTGRES):
            patch.setattr("flujo_client.embedded.postgres.find_binaries", lambda: Path(folder))
        yield
