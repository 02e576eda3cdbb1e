"""PgBouncer in transaction mode (law, design §3). Runs where `pgbouncer` is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fleet import STEADY, Site, wait_until
from services import passable_folder

pytestmark = [
    pytest.mark.services,
    pytest.mark.acceptance,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]

CONFIGURATION = """[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {folder}/log
unix_socket_dir =
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def bounced(services, tmp_path):
    """A site whose client and workers reach Postgres through PgBouncer alone."""
    with Site(services, tmp_path, worker=STEADY, prepare_statements=False) as site:
        direct = urlsplit(site.settings.database())
        options, listen, folder = parse_qs(direct.query), free_port(), passable_folder()
        host = options.get("host", [direct.hostname])[0]
        port = options.get("port", [str(direct.port)])[0]
        name, user = direct.path[1:], direct.username
        configuration = CONFIGURATION.format(name=name, host=host, port=port, user=user, listen=listen, folder=folder)
        (folder / "users.txt").write_text(f'"{user}" ""\n')
        (folder / "pgbouncer.ini").write_text(configuration)
        folder.chmod(0o777)
        account = (
            ["-u", Path(host).owner()] if host.startswith("/") and Path(host).owner() != Path.home().owner() else []
        )
        bouncer = subprocess.Popen(["pgbouncer", *account, folder / "pgbouncer.ini"], stderr=subprocess.DEVNULL)
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", listen)) == 0, what="pgbouncer does not listen")
        through = f"postgresql://{user}@127.0.0.1:{listen}/{name}"
        site.settings = site.settings.with_services(through, site.settings.broker())
        site.client.close()
        site.client = type(site.client)(site.settings)
        yield site
        site.dismiss()
        bouncer.terminate()
        bouncer.wait()


def test_runs_go_through_pgbouncer_in_transaction_mode(bounced):
    """Law: no session locks, nothing that needs LISTEN, prepared statements optional."""
    bounced.workers(2)
    runs = [bounced.enqueue("three") for _ in range(20)]
    assert all(run.result(timeout=60).success for run in runs)
    waiting = bounced.enqueue("waiting")
    bounced.wait_for_execution(waiting.id, "gate")
    assert waiting.cancel(timeout=60)
