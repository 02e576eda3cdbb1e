"""Results that are stored for later runs: looked up when `decide` asks, written after its decision was committed.

Anyone may have written to a cache, so its entries are decoded as data, never run, and their signatures are verified if there are keys.
An entry that is foreign or does not fit counts as a miss. So does a cache that does not answer; it fails no run.
"""

from __future__ import annotations

import hmac
import logging
from typing import Any

from flujo_client.contract.outcome import Event
from flujo_client.errors import SerializationError
from flujo_client.serial import Packed, Tree, decode
from flujo_client.transport.wire import Keys, sign, verify
from flujo_worker.domain.cache import ABSENT, IN_FLIGHT, cache_key
from flujo_worker.domain.patch import apply
from flujo_worker.domain.values import Cached, CacheEntry
from flujo_worker.runtime.question import UserCodeCall, UserCodeRuntime, checked
from flujo_worker.runtime.write_context import absorb

UNREACHABLE, BROKEN, UNFIT, TOO_LARGE = "unreachable", "broken", "unfit", "too_large"
FORM = 2
FLIGHT = ":flight"
"""Ends the key of the lease of the call that runs a step while equal calls wait."""

logger = logging.getLogger(__name__)


def own_keys(keys: Keys) -> Keys:
    """Return the keys for stored results, derived from those for messages, so that neither can be taken for the other."""
    return tuple((name, hmac.digest(secret, b"flujo.cache", "sha256")) for name, secret in keys)


def cached(question: UserCodeCall) -> Cached:
    """Read the cached result of a step. Values: its input, the context. Data: what else its result depends on; the flight to join."""
    key = cache_key(question.step.name, question.data["told"], question.tree(0))
    try:
        kept = _found(question, key)
    except Exception as error:  # noqa: BLE001 - with any error of a cache, the step can be run
        logger.warning("no cache for step '%s': %s: %s", question.step.name, type(error).__name__, error)
        return Cached(why=UNREACHABLE)
    if kept is None or kept is _IN_FLIGHT:
        return Cached(key, ABSENT if kept is None else IN_FLIGHT)
    try:
        output, patch, fallbacks = _read(kept, key, question.bench)
        value = decode(output, resolve=question.bench.resolve)
    except Exception as error:  # noqa: BLE001 - the stored value may be anything
        logger.warning("the cached value for step '%s' cannot be read: %s", question.step.name, type(error).__name__)
        _forget(question, key)
        return Cached(key, BROKEN)
    try:
        return Cached(key, None, Packed.of(output), _with_changes(question, value, patch, fallbacks))
    except Exception as error:  # noqa: BLE001 - a context that it does not fit into is not a failure: the step can be run
        logger.info("the cached value for step '%s' does not fit here: %s", question.step.name, type(error).__name__)
        return Cached(key, UNFIT)


def _found(question: UserCodeCall, key: str) -> Any:
    """Return what is stored under the key, None if this call is to make it, and `_IN_FLIGHT` while an equal call makes it."""
    backend, flight = _backend(question), question.data["flight"]
    kept = question.call_function(backend.get, key)
    if kept is not None or flight is None or not hasattr(backend, "add"):
        return kept
    try:
        return _join_flight(question, backend, key, **flight)
    except Exception as error:  # noqa: BLE001 - with any error of a cache, the step can be run
        logger.warning("equal calls of step '%s' do not wait: %s: %s", question.step.name, type(error).__name__, error)
        return None


def _join_flight(question: UserCodeCall, backend: Any, key: str, *, holder: str, lease_s: float) -> Any:
    call, own = question.call_function, holder.encode()
    if call(backend.add, key + FLIGHT, own, lease_s):
        kept = call(backend.get, key)  # stored since it was looked for
        if kept is not None:
            call(backend.delete, key + FLIGHT)
        return kept
    is_own = call(backend.get, key + FLIGHT) == own  # this decision is made again
    return None if is_own else _IN_FLIGHT


def settle(question: UserCodeCall, entry: CacheEntry) -> Event | None:
    """Store what a call gave, if it gave anything, and then end the wait of equal calls; return the result's event."""
    stored = None if entry.output is None else store_result(question, entry)
    step, backend, flight = question.step, _backend(question), entry.key + FLIGHT
    if not step.single_flight_s or not hasattr(backend, "add"):
        return stored
    try:
        if question.call_function(backend.get, flight) == entry.holder.encode():  # else it has expired
            question.call_function(backend.delete, flight)
    except Exception as error:  # noqa: BLE001 - it will expire
        logger.warning("equal calls of step '%s' wait until a lease expires: %s", step.name, type(error).__name__)
    return stored


def store_result(question: UserCodeCall, entry: CacheEntry) -> Event:
    """Store a step's result; return the event of it. Values: its output, what it changed in the context."""
    step, key = question.step, entry.key
    value = _written(question, entry)
    if len(value) > question.bench.cache_most:
        return not_stored(step.name, TOO_LARGE, bytes=len(value), limit=question.bench.cache_most)
    try:
        question.call_function(_backend(question).set, key, value, step.ttl_s)
    except Exception as error:  # noqa: BLE001 - with any error of a cache, the step has succeeded
        logger.warning("the result of step '%s' was not cached: %s: %s", step.name, type(error).__name__, error)
        return not_stored(step.name, UNREACHABLE)
    return Event("flujo.cache.stored", {"step": step.name, "key": key, "bytes": len(value), "ttl_s": step.ttl_s})


def not_stored(step: str, reason: str, **more: Any) -> Event:
    return Event("flujo.cache.not_stored", {"step": step, "reason": reason, **more}, "warning")


def _backend(question: UserCodeCall) -> Any:
    named = question.step.cache_backend
    if named is None:
        return question.bench.cache
    return question.bench.resolve(named) if isinstance(named, str) else named


def _forget(question: UserCodeCall, key: str) -> None:
    try:
        question.call_function(_backend(question).delete, key)
    except Exception as error:  # noqa: BLE001 - it will be overwritten
        logger.warning("the cached value could not be deleted: %s: %s", type(error).__name__, error)


def _written(question: UserCodeCall, entry: CacheEntry) -> bytes:
    """Write the cached value. The key is part of it, so that a value of one key is not valid under another."""
    tree = {"v": FORM, "key": entry.key, "output": question.tree(0), "patch": question.tree(1)}
    packed = Packed.of(tree | {"fallbacks": entry.fallbacks})
    keys = question.bench.cache_keys
    return sign(bytes(packed), keys[0]) if keys else bytes(packed)


def _read(kept: Any, key: str, bench: UserCodeRuntime) -> tuple[Tree, Tree, int]:
    entry = Packed.from_bytes(verify(bytes(kept), bench.cache_keys)).tree(max_bytes=bench.most)
    if not isinstance(entry, dict) or (entry.get("v"), entry.get("key")) != (FORM, key):
        raise SerializationError("it is not a result of this step for this input")
    return entry["output"], entry["patch"], entry["fallbacks"]


def _with_changes(question: UserCodeCall, value: Any, patch: Tree, fallbacks: int) -> Packed | None:
    """Apply what the step changed to the context again: by how much numbers grew, what lists got, and what it set by its output."""
    before = question.values[1]
    if before is None:
        return None
    step = question.step.wrapped_step
    for _ in range(fallbacks):
        step = step.fallback_step
    if patch is None and not step.performs:
        return before
    context = decode(apply(before.tree(), patch), resolve=question.bench.resolve)
    if step.performs:
        context = absorb(step, value, context)
    return question.pack(checked(context), "context")


_IN_FLIGHT = object()
