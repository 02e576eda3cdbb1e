"""A cached step, and a place of one's own to keep results in. docs/how-to/cache-results.md shows it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from tempfile import gettempdir

from pydantic import BaseModel

from flujo_client import Pipeline, Step

WORDS = {"Biene": "bee", "Stock": "hive"}
ASKED: list[str] = []


class Page(BaseModel):
    words: int = 0
    title: str = ""


def translate(text: str, *, context: Page) -> str:
    ASKED.append(text)
    context.words += len(text.split())
    return " ".join(WORDS.get(word, word) for word in text.split())


pipeline = Pipeline([Step.cached(Step("translate", translate, sink_to="title"), ttl_s=86_400)], context_model=Page)


class Folder:
    """Keeps each result in a file, for as long as asked."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> bytes | None:
        file = self._file(key)
        if not file.exists():
            return None
        until, _, value = file.read_bytes().partition(b"\n")
        return value if not float(until) or time.time() < float(until) else None

    def set(self, key: str, value: bytes, ttl_s: float) -> None:
        until = time.time() + ttl_s if ttl_s else 0
        self._path.mkdir(exist_ok=True)
        self._file(key).write_bytes(f"{until}\n".encode() + value)

    def delete(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._path / hashlib.sha256(key.encode()).hexdigest()


folder = Folder(Path(gettempdir()) / "translations")
by_folder = Pipeline([Step.cached(Step("translate", translate), folder)], context_model=Page)
