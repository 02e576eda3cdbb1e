"""Network namespaces of Linux: a process inside reaches each service over a separate pair of virtual interfaces, which can go down.

Needs root and `ip`. One way is lost where `tc` lets an interface send nothing; its far end still receives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from ipaddress import IPv4Address
from typing import Self

from flujo_worker.chaos.relay import Way

_TESTED = IPv4Address("198.18.0.0")
"""The first address of 198.18.0.0/15, which RFC 2544 reserves for tests of networks."""
_NETS = 32_768
"""The number of nets of four addresses in it."""
_PER_PROCESS = 32


class Namespace:
    """A namespace with a link to each service; `number` is from 1 to 15. A context manager; `command` runs a program inside.

    `addresses` has by service that of our end of the link and that of the end inside.
    """

    def __init__(self, number: int, services: Sequence[str]) -> None:
        self._name = f"flujo-{os.getpid()}-{number}"
        self.command = ["ip", "netns", "exec", self._name]
        self._stack = ExitStack()
        first = os.getpid() * _PER_PROCESS + number * len(services)
        self._links = {service: f"fl{os.getpid()}n{number}{at}" for at, service in enumerate(services)}
        self.addresses = {service: _addresses((first + at) % _NETS) for at, service in enumerate(services)}

    def __enter__(self) -> Self:
        with ExitStack() as failed:
            failed.callback(self._stack.close)
            run("ip", "netns", "add", self._name)
            self._stack.callback(run, "ip", "netns", "delete", self._name)  # its interfaces go with it
            for service, name in self._links.items():
                near, far = self.addresses[service]
                run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}w", "netns", self._name)
                run("ip", "address", "add", f"{near}/30", "dev", name)
                run("ip", "link", "set", name, "up")
                run(*self.command, "ip", "address", "add", f"{far}/30", "dev", f"{name}w")
                run(*self.command, "ip", "link", "set", f"{name}w", "up")
            run(*self.command, "ip", "link", "set", "lo", "up")
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def down(self, service: str) -> AbstractContextManager[None]:
        """Take a link down meanwhile."""
        link = "ip", "link", "set", self._links[service]
        return _between([*link, "down"], [*link, "up"])

    def lose(self, service: str, way: Way) -> AbstractContextManager[None]:
        """Lose every packet of one direction meanwhile."""
        name = self._links[service]
        inside, device = (self.command, f"{name}w") if way == "request" else ([], name)
        tc, root = (*inside, "tc", "qdisc"), ("dev", device, "root")
        return _between([*tc, "add", *root, "pfifo", "limit", "0"], [*tc, "delete", *root])


@contextmanager
def _between(first: Sequence[str], last: Sequence[str]) -> Iterator[None]:
    run(*first)
    try:
        yield
    finally:
        run(*last)


def why_not() -> str | None:
    """Return why this machine has no namespaces for workers; None where it has."""
    if os.uname().sysname != "Linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"needs {' and '.join(missing)}, of the package iproute2"
    try:
        with Namespace(0, ("probe",)) as probe, probe.lose("probe", "request"):
            return None
    except subprocess.CalledProcessError as error:
        return f"is not allowed by the kernel: {error.stderr.decode(errors='replace').strip()}"


def _addresses(net: int) -> tuple[str, str]:
    first = _TESTED + 4 * net
    return str(first + 1), str(first + 2)


def run(*command: str) -> None:
    """Run a command; raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own words only
