"""Durable steps that ask OpenAI's batches, and a plain one that takes the worker's only slot."""

from pydantic_ai import Agent

from flujo_client import Pipeline, Step, StepConfig

QUICK = {"wait_s": 1, "poll_s": 0.5, "deadline_s": 600}


def asking(**batch):
    agent = Agent("openai-responses:scripted", name="asker")
    config = StepConfig(durable=True, max_retries=0)
    return Pipeline([Step("ask", agent, config=config, processing={"batch": {**QUICK, **batch}})], name="asking")


batched = asking()
pooled = asking(wait_s=6)  # two workers' requests come in less, on a busy machine too
late = asking(deadline_s=5)  # the batch is submitted before
plain = Pipeline([Step("plain", lambda given: given)], name="plain")
