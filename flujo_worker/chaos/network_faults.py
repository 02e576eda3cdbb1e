"""The faults of a fleet on several machines: its network, its clocks, the disk of Postgres and its replica."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from flujo_client.embedded import Embedded
from flujo_client.embedded.postgres import find_binaries
from flujo_client.embedded.process import server_account, spawn, wait_until
from flujo_worker.chaos import clocks, namespaces, small_disk
from flujo_worker.chaos.faults import SPELL_S, STALL_S, FaultDeck
from flujo_worker.chaos.network import SERVICES, Link, Network
from flujo_worker.chaos.relay import WAYS, Relay, Way
from flujo_worker.chaos.site import START_S, Site
from flujo_worker.chaos.traffic import Traffic

DELAY_S: Final = 0.2
"""Each way."""
MINUTE_S: Final = 60
APART_S: Final = (1.0, 10.0)
"""Seconds; the longest are longer than a lease."""
_REPLICA, _OLD = "replica", "postgres.old"


class NetworkFaults(FaultDeck):
    """The faults of any site, and those of its network. Takes what `FaultDeck` takes."""

    def __init__(self, site: Site, traffic: Traffic, seed: int) -> None:
        super().__init__(site, traffic, seed)
        assert site.network is not None
        self._network: Network = site.network
        self._is_apart = False
        for service in SERVICES:
            acts: dict[str, tuple[Callable[..., None], Any]] = {
                f"a worker cut off from {service}": (self.part, WAYS),
                f"a worker's packets to {service} lost": (self.part, ("request",)),
                f"packets of {service} to a worker lost": (self.part, ("answer",)),
                f"connections to {service} half open": (self.spoil, Relay.abandon),
                f"messages of {service} cut in the middle": (self.spoil, Relay.cut),
            }
            self.kinds |= {name: partial(act, name, service, how) for name, (act, how) in acts.items()}
        self.kinds |= {
            "a slow network": self.slow_down,
            "a stalled network": self.stall,
            "a failover to a replica that lags": self.fail_over,
        }
        if clocks.library() is not None:
            self.kinds["a worker's clock a minute wrong"] = self.shift_clock
        if site.has_own_disk:
            self.kinds["a full disk"] = self.fill_disk

    def part(self, fault: str, service: str, ways: tuple[Way, ...]) -> None:
        """Lose what a worker and a service send each other, or one of them, for a while; one worker at a time, so that others can take over."""
        if self._is_apart:
            return
        self._is_apart, process = True, self._process()
        link, victims = self._network.link(process), self._running(process)

        def spell() -> None:
            with self._parted(link, service, ways):
                self._last(APART_S)
            self._is_apart = False

        self._begin(spell)
        self._note(fault, victims)

    def spoil(self, fault: str, service: str, act: Callable[[Relay], None]) -> None:
        """Do this to all connections to a service."""
        for link in self._network.links:
            self._network.change(partial(act, link.relays[service]))
        self._note(fault)

    def slow_down(self) -> None:
        """Delay everything by 200 ms each way for a while."""

        def spell() -> None:
            self._delay(DELAY_S)
            self._last(SPELL_S)
            self._delay(0.0)

        self._begin(spell)
        self._note("a slow network")

    def stall(self) -> None:
        """Deliver nothing for a moment, to anyone."""
        relays = self._relays()
        with self._away("a stalled network"):
            for relay in relays:
                self._network.change(partial(relay.hold, *WAYS))
            self._last(STALL_S)
            for relay in relays:
                self._network.change(relay.release)

    def fail_over(self) -> None:
        """Replace Postgres by a replica that has received nothing for a while."""
        services = self._services
        _back_up(services)
        self._last(STALL_S)
        self._count_deadlocks()
        with self._away("a failover to a replica that lags"):
            _fail_over(services)
            self._accept_writes()  # the copy may be of a server that was read-only for a while, and would be so for ever
            self._site.lost_before = self._site.now()

    def fill_disk(self) -> None:
        """Fill the disk of Postgres for a while. If it ends, start it again, as a supervisor would."""
        self._count_deadlocks()
        with self._away("a full disk"):
            with small_disk.full(self._services.directory):
                self._last(SPELL_S)
            wait_until(self._is_up, seconds=START_S)

    def shift_clock(self) -> None:
        """Let a worker's clock be a minute fast or slow for a while."""
        clock = self._network.link(self._process()).clock

        def spell() -> None:
            clocks.shift(clock, self._draw.choice((-MINUTE_S, MINUTE_S)))
            self._last(APART_S)
            clocks.shift(clock, 0)

        self._begin(spell)
        self._note("a worker's clock a minute wrong")

    def _is_up(self) -> bool:
        if self._services.how_they_ended():
            self._services.restart_postgres()
        with suppress(psycopg.Error), self._site.connect():
            return True
        return False

    def _delay(self, seconds: float) -> None:
        for relay in self._relays():
            relay.delay_s = seconds

    def _relays(self) -> list[Relay]:
        return [relay for link in self._network.links for relay in link.relays.values()]

    @contextmanager
    def _parted(self, link: Link, service: str, ways: tuple[Way, ...]) -> Iterator[None]:
        """Break a link as its place allows: a real one where it has a namespace."""
        if link.namespace is not None:
            with link.namespace.down(service) if ways == WAYS else link.namespace.lose(service, ways[0]):
                yield
            return
        self._network.change(partial(link.relays[service].hold, *ways))
        try:
            yield
        finally:
            self._network.change(link.relays[service].release)


def _back_up(services: Embedded) -> None:
    """Copy the running Postgres; raises OSError. When the copy takes its place later, that is a failover with asynchronous replication."""
    folder = services.directory / _REPLICA
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    account = server_account()
    if account is not None:
        os.chown(folder, *account)
    options = ["--checkpoint=fast", "--wal-method=stream", "-d", services.database_url]
    command: list[str | Path] = [find_binaries() / "pg_basebackup", "-D", folder, *options]
    if spawn(command, log=services.directory / "replica.log", account=account).wait():
        raise OSError(f"pg_basebackup failed; see {services.directory / 'replica.log'}")


def _fail_over(services: Embedded) -> None:
    """Crash the primary, and start the replica in its place."""
    data, pid = services.directory / "postgres", services.postgres_pid
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not (data / "postmaster.pid").exists(), seconds=20)
    data.rename(services.directory / _OLD)
    (services.directory / _REPLICA).rename(data)
    services.restart_postgres()
    shutil.rmtree(services.directory / _OLD)


def lacking() -> list[str]:
    """Return what cannot be tried on this machine, with the reasons."""
    found = {
        "workers share this machine's network: a network namespace": namespaces.why_not(),
        "no clock is shifted: that": None if clocks.library() else "needs libfaketime, of the package of the same name",
        "no disk is filled: a file system for Postgres": small_disk.why_not(),
    }
    return [f"{what} {reason}" for what, reason in found.items() if reason]
