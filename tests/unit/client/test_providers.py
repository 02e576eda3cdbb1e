"""The table of providers agrees with the installed pydantic-ai."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import metadata
from typing import get_args

import pytest
from pydantic_ai.models import KnownModelName
from pydantic_ai.providers import infer_provider_class

from flujo_client.contract.providers import PROVIDERS, provider_of

OURS = {"local", "test"}


def test_every_model_that_pydantic_ai_knows_has_a_provider():
    names = get_args(getattr(KnownModelName, "__value__", KnownModelName))
    unknown = {name for name in names if provider_of(name) is None}
    assert not {name.partition(":")[0] for name in unknown} - OURS


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_one_of_pydantic_ais_and_so_is_its_extra(name):
    with suppress(ImportError):  # the provider's own package; a name that it does not know is a ValueError
        infer_provider_class(name)
    assert PROVIDERS[name].extra in metadata("pydantic-ai-slim").get_all("Provides-Extra")
