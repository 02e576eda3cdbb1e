"""Write the table of settings in `docs/reference/configuration.md`, made from the settings' models: `make settings`."""

import re
from pathlib import Path

from flujo_client.config.manager import _VARIABLES, Settings, _flat, meanings

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"
_HEAD = "| key | variables | default | meaning |\n|---|---|---|---|\n"


def settings_table():
    """Return the table: each setting with its variables, default and meaning, in the order of the models."""
    return _HEAD + "".join(
        f"| `{name}` | {_code(*_VARIABLES[name])} | {_code(*_written(default))} | {meanings()[name]} |\n"
        for name, default in _flat(Settings().model_dump(by_alias=True))
    )


def page_with(table):
    """Return the page with this table in the place of its own."""
    return re.sub(re.escape(_HEAD) + r"(?:\|.*\n)*", lambda _: table, PAGE.read_text(encoding="utf-8"))


def _code(*words):
    return ", ".join(f"`{each}`" for each in words)


def _written(default):
    if default in (None, "", {}, ()):
        return []
    if isinstance(default, tuple):
        return [",".join(default)]
    if isinstance(default, bool):
        return [str(default).lower()]
    return [f"{default:g}" if isinstance(default, float) else str(default)]


if __name__ == "__main__":
    PAGE.write_text(page_with(settings_table()), encoding="utf-8")
