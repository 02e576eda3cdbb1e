"""One test for many cases: a test for each would cost milliseconds to collect, to hand out and to report, however little it asserts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def for_each(cases: Mapping[str, tuple[Any, ...]]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a test of a check and its cases, each a tuple of arguments. It fails with all cases that do, by name."""

    def with_cases(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            failures = [f"{name}: {error}" for name, case in cases.items() if (error := failure(check, case))]
            assert not failures, "\n".join(failures)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return with_cases


def failure(check: Callable[..., None], case: tuple[Any, ...]) -> Exception | None:
    """Return what the check raises for a case."""
    try:
        check(*case)
    except Exception as error:  # noqa: BLE001 - reported, beside those of other cases
        return error
    return None
