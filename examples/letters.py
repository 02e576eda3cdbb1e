"""What the blueprint of the documents names, and the pipeline it stands for."""

from __future__ import annotations

from pathlib import Path

from flujo_client import FlujoClient, Pipeline
from flujo_client.errors import BlueprintError

FILE = Path(__file__).parent / "blueprints" / "letters.yaml"


def count_words(letter: str) -> int:
    return len(letter.split())


def find_names(letter: str) -> list[str]:
    return [word for word in letter.split() if word.istitle()]


def keep(letter: str) -> str:
    return letter


def send(client: FlujoClient, to: str) -> str:
    """Enqueue the file's pipeline. The workers need this module, and not the file."""
    run = client.enqueue(str(FILE), to, context={"subject": "bees"})
    return str(run.result(timeout=60).output)


def faults(text: str) -> list[tuple[str, int | None, str | None]]:
    """Tell what is wrong in a text: the key, its line, and what was likely meant."""
    try:
        Pipeline.from_yaml_text(text)
    except BlueprintError as error:
        return [(finding.key, finding.line, finding.nearest) for finding in error.findings]
    return []
