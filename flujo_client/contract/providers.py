"""The packages of model providers, which are not installed with Flujo, and the extra of pydantic-ai for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from flujo_client.contract.suggestions import did_you_mean


class Provider(NamedTuple):
    """The module that a provider's models import, and the extra of pydantic-ai-slim that installs it."""

    module: str
    extra: str

    @property
    def install(self) -> str:
        """Return the command that installs it."""
        return f"pip install 'pydantic-ai-slim[{self.extra}]'"


_OPENAI, _GOOGLE = Provider("openai", "openai"), Provider("google.genai", "google")
_THROUGH_OPENAI: Final = (
    "alibaba azure azure-responses deepseek fireworks github heroku litellm meta moonshotai nebius ollama openai openai-chat "
    "openai-decisions openai-responses openrouter ovhcloud sambanova together vercel vllm"
)
PROVIDERS: Final[Mapping[str, Provider]] = {
    **dict.fromkeys(_THROUGH_OPENAI.split(), _OPENAI),
    **dict.fromkeys(("google", "google-cloud", "google-decisions"), _GOOGLE),
    **{name: Provider("openai", name) for name in ("bedrock-mantle", "cerebras", "crusoe", "snowflake", "zai")},
    **{name: Provider(name, name) for name in ("anthropic", "cohere", "groq", "typesafe")},
    "bedrock": Provider("boto3", "bedrock"),
    "huggingface": Provider("huggingface_hub", "huggingface"),
    "mistral": Provider("mistralai", "mistral"),
    "xai": Provider("xai_sdk", "xai"),
}
_OTHERS: Final = (
    "local test elevenlabs github-copilot openai-chatgpt openai-codex sentence-transformers system-one voyageai"
)
WITHOUT_PACKAGE: Final = frozenset(_OTHERS.split())
"""The other providers: ours, and those of pydantic-ai for which no package is looked for."""
AGENTS: Final = "pydantic_ai"
"""The module without which no agent runs: where it is missing, nothing is known about the packages of workers."""


def provider_of(model: str) -> Provider | None:
    """Return what a model such as `openai:gpt-5` needs; None for one whose provider is not in the table."""
    return PROVIDERS.get(_name_in(model))


def names_provider(model: str) -> bool:
    """Return whether the part of a model's name before the colon is a known provider."""
    return _name_in(model) in PROVIDERS.keys() | WITHOUT_PACKAGE


def misspelt_provider(model: str) -> str | None:
    """Return what is wrong with a model whose provider is unknown but close to a known one."""
    name, colon, _ = model.removeprefix("gateway/").partition(":")
    if not colon or names_provider(model) or _is_provider_here(name):
        return None
    near = did_you_mean(name, PROVIDERS.keys() | WITHOUT_PACKAGE)
    return near and f"'{model[:80]}': there is no provider '{name[:40]}'; {near}"


def _is_provider_here(name: str) -> bool:
    """Return whether the pydantic-ai of this environment has a provider of that name, which may be newer than the table."""
    found = importlib.util.find_spec(AGENTS) if name.replace("-", "").isalnum() else None
    folders = (found.submodule_search_locations or ()) if found else ()
    return any(Path(each, "providers", f"{name.replace('-', '_')}.py").exists() for each in folders)


def _name_in(model: str) -> str:
    return model.partition(":")[0].removeprefix("gateway/")


def missing_for(model: str) -> Provider | None:
    """Return what a model needs and this environment lacks; None where no agent could run here anyway."""
    provider = provider_of(model)
    return provider if provider and is_installed(AGENTS) and not is_installed(provider.module) else None


def is_installed(module: str) -> bool:
    """Return whether a module can be found here, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the package above it is missing; it is half imported
        return False
