"""The tutorial's choice: only what does not fit is shortened."""

from examples.shorten import Draft, fits, shorten
from flujo_client import Pipeline, Step


def tidy(text: str) -> str:
    return " ".join(text.split())


def shout(text: str) -> str:
    return f"{text}!"


pipeline = Pipeline(
    [
        Step("tidy", tidy),
        Step.branch_on("fits", fits, {True: Step("as it is", tidy), False: shorten}),
        Step("shout", shout),
    ],
    context_model=Draft,
)
