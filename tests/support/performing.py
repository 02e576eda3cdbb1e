"""Code of an attempt, without one."""

from contextlib import contextmanager

from flujo_client.attempt_info import running_as, running_attempt


@contextmanager
def performing(run):
    """Run the block as the code of this attempt."""
    before = running_attempt()
    running_as(run)
    try:
        yield
    finally:
        running_as(before)
