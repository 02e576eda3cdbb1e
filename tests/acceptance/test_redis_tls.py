"""Redis behind TLS (`rediss://`), with a certificate of its own authority. Runs where `openssl` is installed."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from flujo_client.api.client import FlujoClient
from flujo_client.errors import ServiceUnreachable
from flujo_client.transport.broker import Broker
from tests.support.fleet import PATIENCE_S, STEADY, Site, assert_merged_once, wait_until
from tests.support.services import fresh_redis

OPENSSL = shutil.which("openssl")

pytestmark = [
    pytest.mark.services,
    pytest.mark.acceptance,
    pytest.mark.installation,
    pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed"),
]


def certificate(folder, name):
    """Make a certificate for 127.0.0.1 that vouches for itself, and its key."""
    files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    is_for = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *is_for]
    subprocess.run(made, check=True, capture_output=True)
    return folder / f"{name}.crt"


@contextmanager
def tls_in_front_of(url, crt):
    """Take TLS on a free port and hand on what is in it; yield the port. The server of the wheel has no TLS of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, crt.with_suffix(".key"))
    inner, loop = urlsplit(url), asyncio.new_event_loop()

    async def relay(reader, writer):
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        to_redis = await asyncio.open_connection(inner.hostname, inner.port)
        await asyncio.gather(relay(reader, to_redis[1]), relay(to_redis[0], writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def rediss(services, folder):
    """Give a URL of Redis behind TLS, given the certificate to trust."""
    plain, crt = fresh_redis(services), certificate(folder, "server")
    with tls_in_front_of(plain, crt) as port:
        at = urlsplit(plain)
        yield (
            lambda ca: (
                f"rediss://:{at.password}@127.0.0.1:{port}{at.path}?ssl_cert_reqs=required&ssl_ca_certs={folder / ca}.crt"
            )
        )


@pytest.fixture(scope="module")
def site(services, rediss, tmp_path_factory):
    """A site whose client and workers reach Redis through TLS alone."""
    with Site(services, tmp_path_factory.mktemp("site"), worker=STEADY) as site:
        site.client.close()
        site.settings = site.settings.with_services(site.settings.database(), rediss("server"))
        site.client = FlujoClient(site.settings)
        yield site


def test_runs_go_through_tls(site):
    site.standing(2)
    chains = [site.enqueue("lingering") for _ in range(5)]
    fans = [site.client.enqueue("container_pipelines:deep", n) for n in range(3)]
    for run in chains:
        assert_merged_once(site, run, ["first", "second", "third"])
    assert [run.result(timeout=PATIENCE_S).run_status for run in fans] == ["succeeded"] * 3, site.log()


def test_a_value_larger_than_a_record_of_tls_goes_through(site):
    site.standing(2)
    assert site.enqueue("large").result(timeout=PATIENCE_S).success, site.log()


def test_a_client_refuses_a_server_that_it_cannot_trust(site, rediss, folder):
    certificate(folder, "stranger")
    settings = site.settings.with_services(site.settings.database(), rediss("stranger"))
    with pytest.raises(ServiceUnreachable, match="certificate verify failed") as caught:
        Broker(settings).reach()
    assert urlsplit(rediss("server")).password not in str(caught.value)


def test_a_worker_says_why_it_takes_nothing(site, rediss, folder, services, tmp_path):
    certificate(folder, "stranger")
    with Site(services, tmp_path, worker=STEADY) as other:
        other.settings = other.settings.with_services(other.settings.database(), rediss("stranger"))
        other.unready_workers()
        log = tmp_path / "workers.log"
        wait_until(lambda: log.exists() and "certificate verify failed" in log.read_text(), what=other.log)
        assert urlsplit(rediss("server")).password not in log.read_text()


def test_without_parameters_the_authorities_of_the_system_are_trusted(rediss, services, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "server.crt"))
    with Site(services, tmp_path, worker=STEADY) as bare:
        bare.client.close()
        of_its_own = urlsplit(bare.settings.broker()).path  # the workers of the other site take what is in theirs
        url = urlsplit(rediss("server"))._replace(path=of_its_own, query="").geturl()
        bare.settings = bare.settings.with_services(bare.settings.database(), url)
        bare.client = FlujoClient(bare.settings)
        bare.standing()
        assert bare.client.enqueue("container_pipelines:deep", 1).result(timeout=PATIENCE_S).success, bare.log()
