"""The table of providers agrees with the installed pydantic-ai."""

import inspect
import re
from contextlib import suppress
from importlib.metadata import metadata
from typing import get_args

import pytest
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.providers import infer_provider_class

from flujo_client.contract.providers import PROVIDERS, names_provider, provider_of
from flujo_client.pipeline.agents import is_made_here

OURS = {"local", "test"}

newest = pytest.mark.skipif(
    not hasattr(Model, "unsupported_settings"), reason="the table is that of the newest pydantic-ai"
)


def test_every_model_that_pydantic_ai_knows_has_a_provider():
    names = get_args(getattr(KnownModelName, "__value__", KnownModelName))
    unknown = {name for name in names if provider_of(name) is None}
    assert not {name.partition(":")[0] for name in unknown} - OURS


@newest
@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_one_of_pydantic_ais_and_so_is_its_extra(name):
    with suppress(ImportError):  # the provider's own package; a name that it does not know is a ValueError
        infer_provider_class(name)
    assert PROVIDERS[name].extra in metadata("pydantic-ai-slim").get_all("Provides-Extra")


@pytest.mark.parametrize(
    ("model", "made"),
    [
        ("models:gateway", True),
        ("models:Gateways.first", True),
        ("company.models:gateway", True),
        ("openai:gpt4", False),
        ("gateway/openai:gpt4", False),
        ("local:mock", False),
        ("voyageai:large", False),
        ("opnai:gpt-4o", False),
        ("test", False),
    ],
)
def test_a_model_is_made_by_a_module_that_has_no_providers_name(model, made):
    """§2.6: as the how-to says, `model: models:gateway` names a function of the module `models`."""
    assert is_made_here(model) is made


@newest
def test_every_provider_of_pydantic_ai_is_known_by_name():
    patterns = re.findall(r"case (.*):\n", inspect.getsource(infer_provider_class))
    names = {name for pattern in patterns for name in re.findall(r"'([\w-]+)'", pattern)}
    assert len(names) > len(PROVIDERS)
    assert not [name for name in names if not names_provider(f"{name}:any")]
