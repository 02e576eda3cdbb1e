"""The word that was likely meant: found where one is near, never made up, and never looked for without end."""

from itertools import chain, repeat

import pytest

from flujo_client.blueprint.finding import nearest
from flujo_client.contract.suggestions import LONGEST, closest_match, did_you_mean

KNOWN = ["timeout", "max_retries", "temperature"]


@pytest.mark.parametrize(("given", "meant"), [("timout", "timeout"), ("max_retrys", "max_retries"), ("colour", None)])
def test_the_nearest_word_is_found_if_one_is_near(given, meant):
    assert closest_match(given, KNOWN) == nearest(given, KNOWN) == meant
    assert did_you_mean(given, KNOWN) == (meant and f"did you mean '{meant}'?")


def test_a_documents_keys_may_be_numbers():
    assert nearest(100, [1000, "x"]) == "1000"


def test_what_is_told_is_a_known_word_and_no_part_of_one():
    long = "k" * (LONGEST + 1)
    assert closest_match(long, [long]) is None
    assert closest_match("k" * LONGEST + "x", ["k" * LONGEST]) == "k" * LONGEST


def test_words_without_end_are_not_looked_through():
    assert closest_match("timout", chain(KNOWN, repeat("other"))) == "timeout"
    assert closest_match("timout" * 1_000_000, repeat("other")) is None
