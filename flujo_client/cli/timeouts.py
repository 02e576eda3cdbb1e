"""Ask a server with a timeout.

The clients' own timeouts are longer, and a server that hangs does not enforce one: so the request runs in a thread, which is
abandoned after the timeout.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from flujo_client.api.client import FlujoClient
from flujo_client.cli.options import Decorator, Real, option
from flujo_client.cli.output import CommandResult, printed
from flujo_client.errors import ServiceUnreachable

T = TypeVar("T")

PATIENCE_S = 10.0
LONGEST_S = 1_000_000.0

timeout_option = option(
    "--timeout",
    type=Real(min=0, min_open=True, max=LONGEST_S),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    envvar="FLUJO_LENS_TIMEOUT",
    help="The timeout of answers from Postgres.",
)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return or raise the result of `call`; raises TimeoutError if it has not ended after so many seconds."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


def tried(call: Callable[[], T], timeout_s: float) -> tuple[T | None, str | None]:
    """Return the result of `call`, or else its error in words, also if it has not ended after so many seconds."""
    try:
        return within(timeout_s, call), None
    except Exception as error:  # noqa: BLE001 - any error is the answer that the person wants
        return None, str(error) or type(error).__name__


def looks(json_help: str = "Print it as JSON.") -> Decorator:
    """Add `--timeout` and `--json`, call the command with a client within that time, and print its answer."""

    def with_options(command: Callable[..., CommandResult]) -> Callable[..., int]:
        @timeout_option
        @printed(json_help)
        @functools.wraps(command)
        def act(*, timeout: float, **given: Any) -> CommandResult:
            return read(timeout, lambda client: command(client, **given))

        return act

    return with_options


def read(timeout_s: float, call: Callable[[FlujoClient], T]) -> T:
    """Send a request with a client made for it; raises as `with_retry` does."""
    with FlujoClient() as client:
        return with_retry(timeout_s, lambda: call(client))


def with_retry(timeout_s: float, call: Callable[[], T]) -> T:
    """Send Postgres a request; raises ServiceUnreachable if it has not answered within so many seconds."""
    try:
        return within(timeout_s, call)
    except TimeoutError as error:
        way_out = "`flujo status` shows whether it is reachable; --timeout allows more time"
        raise ServiceUnreachable(f"Postgres gave {error}", suggestion=way_out) from None
