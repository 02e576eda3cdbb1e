"""Which code an attempt is performed with, and what its pipeline wants where a conversation would go on with other code.

It must not perform anything. In: an attempt's message and its live pipeline. Out: what the attempt records; a refusal that parks its run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.contract.code import AwaitedCode
from flujo_worker.observe.log import emit
from flujo_worker.user_code.code_registry import CodeMismatch

if TYPE_CHECKING:
    from flujo_client.contract.envelope import Envelope
    from flujo_worker.runtime.effects import Effects
    from flujo_worker.user_code.code_registry import LoadedPipeline
    from flujo_worker.user_code.code_versions import CodeVersions, PerformedWith

_PERFORMED = ("step", "resume")


class CodeOfAttempts:
    """What code attempts are performed with.

    Args:
        versions: the code of this process.
        effects: how answers are waited for.
    """

    def __init__(self, versions: CodeVersions, effects: Effects) -> None:
        self._versions, self._effects = versions, effects

    async def of(self, envelope: Envelope, entry: LoadedPipeline) -> PerformedWith | None:
        """Find it; None for work that performs nothing, and for code that cannot be told.

        Raises:
            CodeMismatch: the conversation was held with other code, and the pipeline wants its runs to be parked then.
        """
        if envelope.kind not in _PERFORMED:
            return None
        path, before = entry.node_of(envelope).path, envelope.code
        found = self._versions.known(entry, path, before)
        if found is None:
            found = await self._effects.call(self._versions.find, entry, path, before)
        if found is not None and found.changed and entry.pipeline.on_body_change == "park":
            raise CodeMismatch(
                f"step '{path}' would go on with a conversation that was held with other code: {_listed(found)} changed; "
                "a worker with the code of before will carry it on",
                awaited=AwaitedCode(path, before),
            )
        return found


def emit_change(found: PerformedWith, entry: LoadedPipeline) -> None:
    """Warn that a conversation goes on with other code, unless the pipeline does not mind."""
    if found.changed and entry.pipeline.on_body_change != "ignore":
        emit("code.changed", "warning", changed=list(found.changed))


def _listed(found: PerformedWith) -> str:
    return ", ".join(found.changed)
