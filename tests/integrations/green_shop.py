"""Pipelines of a project on gevent: steps that are async, that wait as greenlets do, and one that blocks."""

import asyncio
import ctypes
import socket
import time

from flujo_client import Pipeline, Step


async def fetch(order):
    """Wait, and look a name up, which asyncio does in its executor."""
    await asyncio.sleep(0.01)
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
    return await asyncio.to_thread(str.upper, order)


def price(order):
    time.sleep(0.02)
    return order


def patched(order):
    return socket.socket.__module__


def freeze(seconds):
    """Wait in C without leaving the greenlet, as a driver that gevent does not know."""
    ctypes.CDLL(None).sleep(seconds)
    return seconds


def linger(order):
    time.sleep(4)
    return order


def branches(many, steps):
    return {f"b{number}": Pipeline(steps(number)) for number in range(many)}


inner = Step.parallel("inner", branches(3, lambda number: [Step(f"price{number}", price)]), reduce="values")
outer = Step.parallel("outer", branches(3, lambda number: [Step(f"fetch{number}", fetch), inner]), reduce="values")
orders = Pipeline([Step("fetch", fetch), outer, Step("count", lambda found: sum(len(each) for each in found))])
world = Pipeline([Step("patched", patched)])
freezing = Pipeline([Step("freeze", freeze)])
lingering = Pipeline([Step("linger", linger), Step("price", price)])
