"""Possessive groups mean the same under every Python that is supported."""

import re

import pytest

from flujo_client.patterns import atomic, compiled


@pytest.mark.parametrize(
    ("possessive", "rewritten"),
    {
        "(?:a|b)*+": "(?>(?:a|b)*)",
        r"(a(?:b|c){1,2}+)++d": r"(?>(a(?>(?:b|c){1,2}))+)d",
        r"[()*+]*+(?:\)|[^)\]]*+)?+": r"[()*+]*+(?>(?:\)|[^)\]]*+)?)",
        r"[^\]](?=x)(?:y)": r"[^\]](?=x)(?:y)",
        r"[]()*+](?:a)*": r"[]()*+](?:a)*",
    }.items(),
)
def test_a_possessive_group_is_an_atomic_one(possessive, rewritten):
    assert atomic(possessive) == rewritten
    assert re.compile(rewritten)


@pytest.mark.parametrize("pattern", [compiled, lambda text: re.compile(atomic(text))])
def test_it_gives_nothing_back_and_backtracks_inside(pattern):
    assert not pattern(r"(?:a|b)*+b").fullmatch("aab")
    assert pattern(r"(?:a\w?c|[^!])*+!").fullmatch("abcac!")
    assert pattern(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"').fullmatch(r'"a \" b"')
