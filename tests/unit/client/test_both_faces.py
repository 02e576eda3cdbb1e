"""The async client and its handle have the names, the parameters and the answers of the sync ones."""

import inspect
from collections.abc import Generator, Iterator

import pytest

from flujo_client import AsyncFlujoClient, AsyncRunHandle, FlujoClient, RunHandle

FACES = [(FlujoClient, AsyncFlujoClient), (RunHandle, AsyncRunHandle)]


def public(face):
    return {name: member for name, member in inspect.getmembers(face) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "other"), FACES)
def test_both_have_the_same_names(sync, other):
    assert public(sync).keys() == public(other).keys()


AT_ONCE = {"event_token"}
"""What asks no service has nothing to wait for."""
METHODS = [
    (sync, other, name) for sync, other in FACES for name, member in public(sync).items() if inspect.isfunction(member)
]


@pytest.mark.parametrize(("sync", "other", "name"), METHODS)
def test_a_method_takes_and_gives_the_same(sync, other, name):
    ours, theirs = inspect.signature(getattr(sync, name)), inspect.signature(getattr(other, name))
    assert list(theirs.parameters.values()) == [
        each.replace(annotation=as_async(each.annotation)) for each in ours.parameters.values()
    ]
    assert theirs.return_annotation == as_async(ours.return_annotation)
    if name in AT_ONCE:
        return
    yields = any(f"{each.__name__}[" in ours.return_annotation for each in (Generator, Iterator))
    gives = inspect.isasyncgenfunction if yields else inspect.iscoroutinefunction
    assert gives(getattr(other, name))


def as_async(annotation):
    """Replace the sync names in an annotation, if it is a text, by the async ones."""
    for name in (Generator.__name__, Iterator.__name__, RunHandle.__name__):
        annotation = annotation.replace(name, f"Async{name}") if isinstance(annotation, str) else annotation
    return annotation
