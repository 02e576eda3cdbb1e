"""The errors of the worker.

WorkerError
├── StoreError              Postgres rejected a statement, or did not answer
│   └── RowLocked           a transaction of somebody else holds what a statement needs; it is tried again
├── Unreadable              a row of ours is missing, or cannot be read; its run is failed
├── DispatchError           a message could not be published
├── StepFailed              the failure of an attempt, for Celery's listeners
├── RetryRequested          a step's code asks for another attempt
│   └── AttemptWaits        an attempt ends to wait without a worker
├── WireError               a message that is not ours, is not signed, or does not fit its own headers
└── IllegalTransition       a bug: a decision that the table does not allow
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flujo_client.errors import ControlFlowError, FlujoError, KeyMissing

if TYPE_CHECKING:
    from flujo_client.transport.dead_letters import Reason

RETIRED: Final = 75
"""The exit code of a worker that retired: EX_TEMPFAIL, for its parent, or the supervisor of one that has none."""


class WorkerError(FlujoError):
    code = "WORKER"


class StoreError(WorkerError):
    code = "STORE"


class RowLocked(StoreError):
    code = "LOCKED"


class Unreadable(WorkerError):
    code = "UNREADABLE"


class DispatchError(WorkerError):
    code = "DISPATCH"


class TaskNotEnded(WorkerError):
    """The end of a run could not be delivered to the Celery task that waits for it. Delivery is retried until a worker of its app succeeds."""

    code = "TASK_NOT_ENDED"


class WireError(WorkerError):
    """A message that is refused: what is wrong with it, without its body, and as `reason` the label that it is counted under."""

    code = "WIRE"

    def __init__(self, message: str, *, reason: Reason = "mismatched", cause: BaseException | None = None) -> None:
        super().__init__(message, cause=cause)
        self.reason = reason


class StepFailed(WorkerError):
    """An attempt has failed, and that is recorded: a task raises this to notify Celery and its listeners."""

    code = "STEP_FAILED"


class RetryRequested(WorkerError):
    """The code of a step asks for another attempt, `after_s` seconds from now, whatever the step's own number of retries."""

    code = "RETRY_REQUESTED"

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class AttemptWaits(RetryRequested, ControlFlowError):
    """An attempt ends, and goes on in `after_s` seconds without having used up a try: so long a wait holds no worker."""

    code = "WAITING"


class IllegalTransition(WorkerError):
    code = "ILLEGAL_TRANSITION"


def key_missing_in(error: BaseException | None) -> KeyMissing | None:
    """Return the error's cause, if that is a value that could not be decrypted here: such an error says nothing about the run."""
    while error is not None and not isinstance(error, KeyMissing):
        error = error.__cause__ or error.__context__
    return error
