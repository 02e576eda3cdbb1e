"""Limits on what a run and one of its steps may spend."""

from flujo_client import Pipeline, Step, StepConfig, UsageLimits


def draft(topic: str) -> str:
    return f"All about {topic}"


def polish(text: str) -> str:
    return text.upper()


pipeline = Pipeline(
    [
        Step("draft", draft, config=StepConfig(expected_tokens=800, expected_cost_usd=0.02)),
        Step("polish", polish, usage_limits=UsageLimits(total_cost_usd_limit=0.10)),
    ],
    name="article",
)
LIMITS = UsageLimits(total_cost_usd_limit=0.50, total_tokens_limit=20_000)
