"""Network namespaces of Linux: a process inside reaches each service over a separate pair of virtual interfaces, which can go down.

Needs root and `ip`. One way is lost where `tc` lets an interface send nothing; its far end still receives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flujo_worker.chaos.relay import Way

_NETS = 32_768
"""The number of nets of four addresses in 198.18.0.0/15, which RFC 2544 reserves for tests of networks."""
_PER_PROCESS = 32


class Namespace:
    """A namespace with a link to each service. A context manager.

    Args:
        number: of the namespace in this process, from 1 to 15.
        services: the names of the links.

    Attributes:
        addresses: by service, that of our end of the link and that of the end inside.
        command: what runs a program inside.
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

    @contextmanager
    def down(self, service: str) -> Iterator[None]:
        """Take a link down."""
        run("ip", "link", "set", self._links[service], "down")
        try:
            yield
        finally:
            run("ip", "link", "set", self._links[service], "up")

    @contextmanager
    def lose(self, service: str, way: Way) -> Iterator[None]:
        """Lose every packet of one direction."""
        name = self._links[service]
        inside, device = (self.command, f"{name}w") if way == "request" else ([], name)
        run(*inside, "tc", "qdisc", "add", "dev", device, "root", "pfifo", "limit", "0")
        try:
            yield
        finally:
            run(*inside, "tc", "qdisc", "delete", "dev", device, "root")


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
    number = (198 << 24) + (18 << 16) + 4 * net
    return _dotted(number + 1), _dotted(number + 2)


def _dotted(number: int) -> str:
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


def run(*command: str) -> None:
    """Run a command; raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own words only
