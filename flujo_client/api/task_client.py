"""`TaskClient`: the original's operations on other people's runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.api.operations import peek_at
from flujo_client.config.manager import Settings
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import RunRecord
from flujo_client.contract.results import PipelineResult


class TaskClient:
    """The task operations of the original project, over AsyncFlujoClient."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._client = AsyncFlujoClient(settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def list_tasks(
        self,
        status: str | None = None,
        pipeline_name: str | None = None,
        limit: int = 50,
        offset: int = 0,
        metadata_filter: Mapping[str, Any] | None = None,
    ) -> list[RunRecord]:
        """List runs, newest first; `status` in the original's words or in this project's.

        Raises:
            ClientError: `status` is not one of them.
        """
        return await self._client.list_runs(
            status=status, pipeline=pipeline_name, limit=limit, offset=offset, metadata=metadata_filter
        )

    async def get_task(self, run_id: str) -> PipelineResult:
        """Read what there is of a run; raises RunNotFound."""
        result: PipelineResult = await self._client.perform(peek_at(self._client.settings, run_id))
        return result

    async def resume_task(self, run_id: str, value: Any, **named: Any) -> Approval:
        """Answer a run's open question, with the options of `RunHandle.resume`. It is enqueued: a worker continues."""
        return await (await self._client.get_run(run_id)).resume(value, **named)

    async def cancel_task(self, run_id: str, *, reason: str | None = None) -> bool:
        """Cancel a run."""
        return await (await self._client.get_run(run_id)).cancel(reason=reason)
