"""What a type checker knows of pipelines, runs and results. `# wrong:` marks the lines that it must refuse, with the code of the error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from flujo_client import (
    AsyncRunHandle,
    Flujo,
    LoopStep,
    ParallelStep,
    Pipeline,
    PipelineContext,
    PipelineResult,
    RunHandle,
    Step,
    StepConfig,
    step,
)
from flujo_worker import AgentTool, FlujoWorker, LocalEngine, make_agent_async
from flujo_worker import Pipeline as TheSamePipeline

if TYPE_CHECKING:
    from flujo_client import AsyncFlujoClient, FlujoClient


class Shop(PipelineContext):
    total: int = 0


@step
async def count(text: str) -> int:
    return len(text)


@step
def shout(text: str) -> str:
    return text.upper()


@step(sink_to="total", max_retries=3)
async def sized(text: str) -> int:
    return len(text)


@step(name="cried")
def cry(text: str) -> str:
    return f"{text}!"


orders: Pipeline[str, Shop] = Pipeline([count, shout], context_model=Shop)


async def later(order: Shop) -> list[int]:
    return [order.total]


class Teller:
    def run(self, data: str) -> str:
        return data


def steps(agent: Any) -> None:
    assert_type(Step("count", len), Step[int])
    assert_type(Step("later", later), Step[list[int]])
    assert_type(Step("later", later, sink_to="total", config=StepConfig(max_retries=3)), Step[list[int]])
    assert_type(Step("count", len) >> Step("later", later), Pipeline[list[int], Any])
    assert_type(Step("tell", Teller()), Step[Any])
    assert_type(Step("shop", "shop:price", StepConfig(), ()), Step[Any])
    asked: Step[str] = Step("ask", agent)
    counted = Step("count", len)
    wrong: Step[str] = counted  # wrong: assignment
    Step("count", len, retries=3)  # wrong: call-overload
    print(asked, wrong)


def pipelines() -> None:
    assert_type(count, Step[int])
    assert_type(shout, Step[str])
    assert_type(sized, Step[int])
    assert_type(cry, Step[str])
    assert_type(count >> shout, Pipeline[str, Any])
    assert_type(shout >> count >> shout >> count, Pipeline[int, Any])
    assert_type(Pipeline.from_step(count), Pipeline[int, Any])
    assert_type(orders >> count, Pipeline[int, Shop])
    assert_type(TheSamePipeline.from_step(count), Pipeline[int, Any])
    Pipeline(count)  # wrong: arg-type
    Pipeline([len])  # wrong: list-item
    count >> len  # wrong: operator


def runs(client: FlujoClient) -> None:
    assert_type(client.enqueue(orders, "a"), RunHandle[str, Shop])
    result = client.enqueue(orders, "a").result()
    assert_type(result, PipelineResult[str, Shop])
    assert_type(result.output, str)
    assert_type(result.raise_for_status().final_pipeline_context.total, int)
    assert_type(client.enqueue("shop:orders", "a").result().output, Any)
    assert_type(Flujo(orders).run("a").output, str)
    client.enqueue(orders, "a").result().output.nothing()  # wrong: attr-defined


async def awaited(client: AsyncFlujoClient) -> None:
    assert_type(await client.enqueue(orders, "a"), AsyncRunHandle[str, Shop])
    assert_type((await (await client.enqueue(count, "a")).result()).output, int)


def is_done(output: Any, context: Any) -> bool:
    return bool(output and context)


def containers() -> None:
    assert_type(Step.loop_until("l", count, is_done, 3, fails_at_max=True), LoopStep)
    assert_type(Step.loop_until("l", body=count, exit_condition_callable=is_done, max_iterations=3), LoopStep)
    assert_type(Step.parallel("p", {"a": count}, max_concurrency=2, strategy="ignore"), ParallelStep)
    Step.loop_until("l", count, is_done, fails_at_maximum=True)  # wrong: call-arg
    Step.parallel("p", {"a": count}, max_concurrency="two")  # wrong: arg-type


def authors() -> None:
    make_agent_async("openai:gpt-4o-mini", "Be brief.")
    FlujoWorker()
    assert_type(LocalEngine().run(orders, "a"), PipelineResult[str, Shop])
    assert_type(LocalEngine().run(count, "a").output, int)
    assert_type(LocalEngine().run("shop:orders", "a").output, Any)
    AgentTool  # noqa: B018
