"""What a newcomer writes into one file or a notebook works in the local engine, quietly; mistakes are answered with the way out."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from flujo_client import Pipeline, Step
from flujo_client.errors import ClientError
from flujo_worker import LocalEngine

SHOP = """
    from dataclasses import dataclass
    from enum import Enum

    from pydantic import BaseModel

    from flujo_client import Pipeline, PipelineContext, Step
    from flujo_worker import LocalEngine, make_agent_async

    class Size(Enum):
        SMALL = "s"

    class Item(BaseModel):
        name: str
        size: Size = Size.SMALL

    @dataclass
    class Price:
        item: Item
        amount: float

    class Shop(PipelineContext):
        last: Item | None = None

    def read(text: str) -> Item:
        return Item(name=text)

    async def price(item: Item, *, context: Shop) -> Price:
        context.last = item
        return Price(item, 7.5)

    def tell(price: Price) -> Price:
        return price

    ask = make_agent_async("local:mock", "Repeat it.")
    pipeline = Pipeline([Step("ask", ask), Step("read", read), Step("price", price), Step("tell", tell)], context_model=Shop)
    with LocalEngine() as engine:
        result = engine.run(pipeline, "bees")
    assert result.output == Price(Item(name="bees"), 7.5), result
    assert result.final_pipeline_context.last == Item(name="bees")
"""


def python(folder: Path, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program: from its file, or like a cell of a notebook, which has none."""
    file = folder / "shop.py"
    file.write_text(dedent(text))
    command = [sys.executable, *(arguments or (str(file),))]
    with file.open() as given:
        return subprocess.run(
            command, stdin=given, cwd=folder, env=environment(), check=False, capture_output=True, text=True
        )


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": root}


@pytest.mark.parametrize("arguments", [(), pytest.param(("-",), marks=pytest.mark.large)], ids=["script", "notebook"])
def test_classes_of_the_program_itself_work_and_nothing_else_is_printed(tmp_path, arguments):
    done = python(tmp_path, SHOP, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.large
def test_a_script_is_not_run_again_to_find_its_classes(tmp_path):
    done = python(tmp_path, f"print('once')\n{dedent(SHOP)}")
    assert (done.stdout, done.stderr) == ("once\n", "")


@pytest.mark.large
def test_a_class_that_is_defined_again_is_the_new_one(tmp_path):
    again = """
        with LocalEngine() as engine:
            for number in (1, 2):
                class Item(BaseModel):
                    name: str
                    number: int = number
                def make(_) -> Item:
                    return Item(name="a")
                def take(item: Item) -> int:
                    return item.number
                assert engine.run(Step("make", make) >> Step("take", take)).output == number
    """
    done = python(tmp_path, f"{dedent(SHOP)}\n{dedent(again)}", "-")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.large
def test_what_a_session_defines_is_not_sent_to_workers(tmp_path):
    sent = """
        from flujo_client.pipeline.compile import compile_plan
        from flujo_client.config.models import SizeLimits
        from flujo_client.pipeline.submit import Order, new_run
        new_run(compile_plan(pipeline), "shop:pipeline", [Item(name="a")], Order("run_1"), size=SizeLimits(), allowed=["*"])
        print("sent")
    """
    text = f"{dedent(SHOP)}\n{dedent(sent)}"
    refused = python(tmp_path, text, "-")
    assert "the class Item is defined in an interactive session, where no worker can import it" in refused.stderr
    assert python(tmp_path, text).stdout == "sent\n", "a worker imports a script by its name"


def test_a_closed_engine_says_so_and_still_has_its_results():
    pipeline = Pipeline([Step("double", lambda number: 2 * number)])
    with LocalEngine() as engine:
        run = engine.run(pipeline, 4)
        engine.close()  # and the block closes it once more
    assert engine.result(run.run_id).output == 8
    with pytest.raises(ClientError, match="this LocalEngine is closed"):
        engine.run(pipeline, 4)
