"""The process that `flujo_worker.recovery.import_trials` starts: it loads the code of a run and ends, if the code lets it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from flujo_client.config.manager import ConfigManager
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry
from flujo_worker.errors import Unreadable
from flujo_worker.recovery.import_trials import LOADED
from flujo_worker.store.postgres.store import PostgresStore


def main(reference: str, fingerprint: str, seconds: int) -> None:
    """Load it. A failure does no harm: the caller meets it too, with the reason."""
    signal.alarm(seconds)  # ends this process even if no other process is left to do so, and nothing in it can
    settings = ConfigManager().settings()
    store = PostgresStore(settings.database(), pool_max=1).open()
    with suppress(CodeMismatch, Unreadable):
        CodeRegistry(settings.allowed_imports, store.plan).entry(reference, fingerprint)
    os._exit(LOADED)
