"""The tutorial's pipeline: two steps that share a context."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step


class Visit(BaseModel):
    visitor: str = ""
    greeting: str = ""


def tidy(name: str) -> str:
    return " ".join(name.split()).title()


async def greet(name: str, *, context: Visit) -> str:
    if not context.visitor:
        raise ValueError("no one to greet")
    return f"Good day, {name}!"


pipeline = Pipeline(
    [Step("tidy", tidy, sink_to="visitor"), Step("greet", greet, sink_to="greeting")],
    context_model=Visit,
)
