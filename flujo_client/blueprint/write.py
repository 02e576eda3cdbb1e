"""From data to YAML, as `read` reads it."""

from __future__ import annotations

from typing import Any

import yaml

from flujo_client.blueprint.read import WORDS, is_number


class _Dumper(yaml.SafeDumper):
    """Writes texts plain where `read` takes them for texts, and every value as often as it stands there."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - an anchor would say that two places have to stay alike
        return True

    def represent_text(self, text: str) -> Any:
        style = "|" if "\n" in text and not text.startswith((" ", "\n")) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def dump(document: Any) -> str:
    """Write a document: keys in their order, long texts unfolded."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text
