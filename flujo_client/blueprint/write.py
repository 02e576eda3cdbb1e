"""From data to YAML, so that `read` reads the same data.

It must not know what the data mean. In: plain data; out: a text.
"""

from __future__ import annotations

from typing import Any

import yaml

from flujo_client.blueprint.read import CORE, NUMBER, WHOLE, WORD


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `read` would not read as text, and writes repeated values in full."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - an anchor would mean that two places must stay equal
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        """Write a text of several lines as a block, one with other line breaks in quotes, because YAML would change them."""
        style = '"' if any(each in data for each in "\x85\u2028\u2029") else "|" if "\n" in data else None
        return self.represent_scalar(f"{CORE}str", data, style=style)


_Dumper.yaml_implicit_resolvers = {}
for _tag, _pattern in {
    "bool": WORD["bool"],
    "null": WORD["null"],
    "int": WHOLE,
    "float": NUMBER,
    "merge": WORD["merge"],
}.items():
    _Dumper.add_implicit_resolver(f"{CORE}{_tag}", _pattern, None)
_Dumper.yaml_implicit_resolvers[""] = [(f"{CORE}null", WORD["null"])]
_Dumper.add_representer(str, _Dumper.text)


def dump(document: Any) -> str:
    """Write a document: keys in their order, long texts in one line."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text
