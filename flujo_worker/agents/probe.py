"""Determine what a model supports, without network, key or provider's SDK.

It sends nothing and builds no model. In: a pydantic-ai model, or an id such as `openai:gpt-5`. Out: a `Capability`; an unknown model
supports nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.profiles import ModelProfile

_WITHOUT: Final = re.compile(r"(?:ft:)?(?:gpt-3\.?5|gpt-4(?:$|[-:])|gpt-4o-2024-05-13|o1-(?:mini|preview))")
"""OpenAI's models from before structured outputs, and their fine-tunes; pydantic-ai's profiles do not except them."""

_FAMILIES: Final = {"anthropic": "anthropic", "google": "google", "google-cloud": "google", "xai": "grok"}
"""The provider whose profile is used while a provider's SDK is not installed."""


@dataclass(frozen=True, slots=True)
class Capability:
    """The capabilities of a model.

    Attributes:
        json_schema: its provider can enforce a JSON Schema.
        json_object: its provider can enforce JSON.
        provider: pydantic-ai's name of the provider; empty if the id has none.
        model: its name at the provider.
    """

    json_schema: bool
    json_object: bool
    provider: str
    model: str


def capability_of(model: Model[Any] | str | None) -> Capability:
    """Return what a model supports, from pydantic-ai's profiles; ids are looked up once per process.

    A fallback over several models has no profile, and neither has no model: both count as supporting nothing.
    """
    if model is None or isinstance(model, str):
        return _of_id(model or "")
    try:
        profile: ModelProfile = model.profile
    except NotImplementedError:
        profile = {}
    return _capability(profile, model.system, model.model_name)


@lru_cache(maxsize=256)
def _of_id(model: str) -> Capability:
    from pydantic_ai.models import infer_model_profile, parse_model_id

    provider, name = parse_model_id(model)
    try:
        profile = infer_model_profile(model)
    except (ImportError, RuntimeError, ValueError):  # no SDK, or a gateway that pydantic-ai does not know
        profile = _family_profile(provider or "", name)
    return _capability(profile, provider or "", name)


def _family_profile(provider: str, name: str) -> ModelProfile:
    family = _FAMILIES.get(provider)
    if family is None:
        return {}
    profile_of = getattr(import_module(f"pydantic_ai.profiles.{family}"), f"{family}_model_profile")
    profile: ModelProfile | None = profile_of(name)
    return profile or {}


def _capability(profile: ModelProfile, provider: str, model: str) -> Capability:
    is_excepted = _WITHOUT.match(model.rpartition("/")[2]) is not None
    return Capability(
        json_schema=not is_excepted and profile.get("supports_json_schema_output", False),
        json_object=not is_excepted and profile.get("supports_json_object_output", False),
        provider=provider,
        model=model,
    )
