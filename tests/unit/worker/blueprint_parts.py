"""The objects that the blueprints of tests name: agents, conditions, mappers, judges."""

from typing import Any

from pydantic import BaseModel

from flujo_client import InMemoryCache, Pipeline, PluginOutcome, Step

CALLS: list[Any] = []
backend = InMemoryCache()


class Numbers(BaseModel):
    numbers: list[int] = []
    total: int = 0
    step_outputs: dict[str, Any] = {}


def echo(data: Any) -> Any:
    return data


def upper(data: str) -> str:
    return data.upper()


def shout(data: Any) -> str:
    return f"{data}!"


def recall(_data: Any, *, history: str | None = None) -> str:
    return str(history)


def double(data: int) -> int:
    return data * 2


def add_one(data: int) -> int:
    return data + 1


def counted(data: Any) -> Any:
    CALLS.append(data)
    return data


def counts(outputs: list[Any], _context: Any) -> int:
    return len(outputs)


def fail(data: Any) -> Any:
    raise ValueError(f"cannot do {data}")


def names(data: Any) -> list[str]:
    return ["b", "a"]


def is_long(output: Any, context: Any) -> bool:
    return len(output) > 3


def at_four(output: Any, context: Any) -> bool:
    return bool(output >= 4)


def halve(value: Any, context: Any, *_: Any) -> Any:
    return value // 2


def tagged(output: Any, key: Any, context: Any) -> Any:
    return {"key": key, "output": output}


def total(outputs: dict[str, Any]) -> Any:
    return sum(outputs.values())


def keep(context: Any, branches: Any) -> None:
    context.merged = sorted(branches)


def is_positive(output: Any) -> bool:
    return bool(output > 0)


def exclaim(data: Any, context: Any = None) -> Any:
    return f"{data}?"


class Replace:
    def validate(self, data: Any) -> PluginOutcome:
        return PluginOutcome(success=True, new_solution=f"<{data}>")


class Wrap:
    def validate(self, data: Any) -> PluginOutcome:
        return PluginOutcome(success=True, new_solution=f"[{data}]")


replacer, wrapper = Replace(), Wrap()
nested = Pipeline([Step("inner", double)], name="nested")


def lookup(name: str) -> str:
    """Look a name up."""
    return f"{name} is known"


def resources() -> dict[str, str]:
    return {"pool": "open"}


def pooled(data: Any, *, resources: Any) -> Any:
    return resources["pool"]
