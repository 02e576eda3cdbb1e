"""What a program does with a client: enqueue, wait, read, cancel."""

from flujo_client import AsyncFlujoClient, FlujoClient, PipelineResult, RunHandle


def file_ticket(client: FlujoClient, text: str, number: str) -> RunHandle:
    return client.enqueue("examples.ticket:pipeline", text, idempotency_key=number)


def team_of(run: RunHandle) -> str:
    result = run.result(timeout=60).raise_for_status()
    return str(result.final_pipeline_context.team)


def greet(client: FlujoClient, name: str) -> str:
    run = client.enqueue("examples.greeting:pipeline", name, metadata={"source": "docs"})
    result = run.result(timeout=30).raise_for_status()
    print(result.output, result.final_pipeline_context, result.total_cost_usd)  # noqa: T201 - it is shown to people
    return run.id


def greet_once(client: FlujoClient, name: str, order: str) -> bool:
    run = client.enqueue("examples.greeting:pipeline", name, idempotency_key=order, deadline_s=600)
    return run.is_new


def story(client: FlujoClient, run_id: str) -> list[str]:
    run = client.get_run(run_id)
    return [event.name for event in run.events()]


def give_up(client: FlujoClient, run_id: str) -> bool:
    return client.get_run(run_id).cancel(reason="nobody waits for it", actor="ana")


def try_again(client: FlujoClient, run_id: str) -> RunHandle:
    return client.get_run(run_id).retry()  # at the step that failed


def greet_again(client: FlujoClient, run_id: str) -> PipelineResult:
    run = client.get_run(run_id).retry("greet", metadata={"why": "another greeting"})
    return run.result(timeout=30)


async def greet_awaited(client: AsyncFlujoClient, name: str) -> PipelineResult:
    run = await client.enqueue("examples.greeting:pipeline", name)
    return await run.result(timeout=30)
