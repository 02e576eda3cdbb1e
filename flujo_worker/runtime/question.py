"""A call of user code for one role: the live step, the decoded values, and the runtime."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Executor
from functools import partial
from typing import Any

import pydantic

from flujo_client.config.models import TemplateSettings
from flujo_client.contract.context import StoredContext
from flujo_client.errors import ContextMergeError, FlujoError, PipelineError, SnapshotTooLarge
from flujo_client.frozen import frozen
from flujo_client.pipeline.cache import CacheBackend
from flujo_client.pipeline.function_marks import context_use
from flujo_client.schemas.fail_fast import places_of, refuse_costly, refuse_costly_assignment
from flujo_client.serial import Packed, decode, encode
from flujo_client.transport.wire import Keys
from flujo_worker.concurrency.event_loop import Loop, is_async, of_limit, within
from flujo_worker.concurrency.threads import carried
from flujo_worker.errors import StoreError
from flujo_worker.ports import BlobStore
from flujo_worker.runtime.call_args import accepts_param, arranged

RESUME_INPUT = "resume_input"
"""The parameter by which user code gets a person's answer to the pause that it raised."""


@frozen
class UserCodeRuntime:
    """The runtime of user code, and its bounds."""

    loop: Loop
    threads: Executor
    resolve: Callable[[str], Any]
    timeout_s: float
    most: int
    """The maximum bytes of JSON of a value."""
    cache: CacheBackend
    """Stores results of steps that name no backend."""
    cache_keys: Keys
    """The first signs stored results; they are read if any of them signed."""
    cache_most: int
    template: TemplateSettings

    def call(self, function: Callable[..., Any], ready: Callable[[], Any]) -> Any:
        """Call user code, by `ready`, which has its arguments: sync in a thread, async on the loop; raises TimeoutError if it takes too long."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        given = ready() if is_async(function) else self._in_thread(ready)
        return self._awaited(given, name) if inspect.isawaitable(given) else given

    def _in_thread(self, ready: Callable[[], Any]) -> Any:
        future = self.threads.submit(carried(partial(_contained, ready)))
        try:
            return future.result(self.timeout_s)
        except TimeoutError as error:
            if not future.done() or future.exception() is not error:
                of_limit(error, self.timeout_s)
            raise
        finally:
            future.cancel()  # if it is still at work, it is left behind

    def _awaited(self, given: Awaitable[Any], name: str) -> Any:
        try:
            return self.loop.submit(_awaited_within(self.timeout_s, given), name).result()
        except CancelledError as error:
            if self.loop.is_given_up:
                raise StoreError("this process has abandoned its event loop") from error
            raise RuntimeError("it cancelled its own task") from error


@frozen
class UserCodeCall:
    """One question."""

    step: Any
    """The live step with the user code."""
    values: tuple[Packed | None, ...]
    """Its packed arguments, all inline."""
    data: dict[str, Any]
    bench: UserCodeRuntime
    reply: Callable[[], Packed | None] = lambda: None
    """Reads a person's answer to a pause that the same code raised before; None if there is none."""

    def tree(self, place: int) -> Any:
        packed = self.values[place]
        return None if packed is None else packed.tree()

    def value(self, place: int) -> Any:
        """Return an argument as the live value; each time a new one, so that nothing is shared that user code may change."""
        return self.live(self.values[place])

    def _context_for(self, function: Callable[..., Any]) -> Any:
        """Return the context, which is the second argument, in the form that a function needs: live, stored, or None."""
        use = context_use(function)
        if use == "live":
            return self.value(1)
        return None if use == "none" else self.stored(1)

    def stored(self, place: int) -> StoredContext | None:
        """Return the context among the arguments as it is stored."""
        packed = self.values[place]
        return None if packed is None else StoredContext(packed, self.bench.resolve)

    def live(self, packed: Packed | None) -> Any:
        return None if packed is None else decode(packed.tree(), resolve=self.bench.resolve)

    def pack(self, value: Any, what: str) -> Packed:
        """Pack an answer; raises SerializationError or SnapshotTooLarge."""
        return self.pack_tree(encode(value, path=what), what)

    def pack_tree(self, tree: Any, what: str) -> Packed:
        return self.bounded(Packed.of(tree, like=self.values), what)

    def bounded(self, packed: Packed, what: str) -> Packed:
        length = packed.length
        if length > self.bench.most:
            raise SnapshotTooLarge(f"{length:,} bytes of JSON; at most {self.bench.most:,} can be sent", path=what)
        return packed

    def call(self, role: str, *given: Any, **optional: Any) -> Any:
        """Call the user function of a role: sync in a thread, async on the loop, either within the timeout.

        `CONTEXT` among the arguments stands for the context; `optional` keywords are passed to functions that take them.
        """
        function = self.step.functions()[role]
        return self.call_function(function, *given, **optional)

    def call_function(
        self, function: Callable[..., Any], *given: Any, context: Callable[[], Any] | None = None, **optional: Any
    ) -> Any:
        """Call a user function, with the question's context unless another is given; raises TimeoutError when it takes too long."""
        if accepts_param(function, RESUME_INPUT) and (reply := self.reply()) is not None:
            optional[RESUME_INPUT] = self.live(reply)
        found = context or partial(self._context_for, function)
        return self.bench.call(function, arranged(function, given, context=found, options=optional))


def _contained(ready: Callable[[], Any]) -> Any:
    """Call user code; what would end a process or a loop is a failure of the code that raised it."""
    try:
        return ready()
    except Exception:
        raise
    except BaseException as error:
        raise _exited(error) from error


async def _awaited_within(timeout_s: float, given: Awaitable[Any]) -> Any:
    async with within(timeout_s):
        try:
            return await given
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise _exited(error) from error


def _exited(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the function raised {type(error).__name__}")


def field_at(context: Any, path: str) -> Any:
    """Return the value at a dotted path in a context; raise PipelineError naming the part that does not exist."""
    place = context
    for part in path.split("."):
        if isinstance(place, dict) and part in place:
            place = place[part]
        elif not isinstance(place, dict) and hasattr(place, part):
            place = getattr(place, part)
        else:
            raise PipelineError(f"'{path}' does not exist in {type(context).__name__}: there is no '{part}'")
    return place


def checked(context: Any) -> Any:
    """Validate a context by its own model, once; raises ContextMergeError."""
    return fitted(type(context), fields_in(context), "the merged context")


def fields_in(context: Any) -> dict[str, Any]:
    """Return a context's fields, including those that its model does not declare."""
    return {name: getattr(context, name) for name in type(context).model_fields} | (context.model_extra or {})


def fitted(model: type[pydantic.BaseModel], values: dict[str, Any], what: str) -> Any:
    """Make a model of values; raises ContextMergeError where `what` does not fit it: the fields are named, their values are not."""
    try:
        refuse_costly(model, values, by_name=True)
        return model.model_validate(values, by_name=True)
    except pydantic.ValidationError as error:
        raise ContextMergeError(f"{what} does not fit {model.__name__}: {places_of(error)}") from None


def put(place: Any, name: str, value: Any) -> None:
    """Set a field, or a mapping's entry. Raises ContextMergeError, without the value: the model rejects it."""
    if isinstance(place, dict):
        place[name] = value
        return
    try:
        if isinstance(place, pydantic.BaseModel) and place.model_config.get("validate_assignment"):
            refuse_costly_assignment(place, name, value)
        setattr(place, name, value)
    except pydantic.ValidationError as error:
        raise ContextMergeError(f"{type(place).__name__} rejects the value: {places_of(error)}") from None


def fetched(blobs: BlobStore, values: Iterable[Packed | None]) -> dict[str, Packed]:
    """Fetch the values of these references, by digest. Raises FlujoError, code SNAPSHOT_LOST: one is missing or damaged."""
    wanted = {packed.digest for packed in values if packed is not None and packed.is_reference}
    found = blobs.fetch(wanted) if wanted else {}
    for digest in wanted:
        if digest not in found or not found[digest].matches(digest):
            raise FlujoError(f"snapshot {digest[:12]} is missing or does not fit its digest", code="SNAPSHOT_LOST")
    return found
