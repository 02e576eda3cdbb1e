"""Every key of a step's `processing` block, each on a step that shows what it does. The agents are plain functions: no model is asked."""

from itertools import cycle

from pydantic import BaseModel

from flujo_client import AgentProcessors, PipelineContext, Step, StepConfig

ORDER = {
    "type": "object",
    "required": ["id", "count"],
    "properties": {
        "id": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^A"}]},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"type": "object"},
    },
}


def order(_text: str) -> str:
    return """{id: '7', count: '3', price: '2.50', paid: 'true', tags: 'gift', address: '{"city": "Bern"}',}"""


read_order = Step(
    "read order",
    order,
    processing={
        "structured_output": "off",
        "aop": "full",
        "coercion": {
            "tolerant_level": 1,
            "allow": {
                "integer": ["str->int"],
                "number": ["str->float", "str->int"],
                "boolean": ["str->bool"],
                "array": ["str->array", "T->[T]"],
                "object": ["str->object"],
            },
            "max_unescape_depth": 2,
            "anyof_strategy": "first-pass",
        },
        "schema": ORDER,
    },
)


class Count(BaseModel):
    count: int


COUNT = Count.model_json_schema()


class Counter:
    output_type = Count

    def run(self, text: str) -> str:
        return text


counted = Step("counted", Counter(), processing={"aop": "minimal", "typed_fast_path": True})

strict = Step(
    "strict",
    Counter(),
    config=StepConfig(max_retries=0),
    processing={"structured_output": "outlines", "enforce_grammar": True, "schema": COUNT},
)

watched = Step("watched", Counter(), processing={"aop": "full", "shadow": True, "coercion": {"tolerant_level": 0}})


PLANS = cycle(["read the invoice", "ask the customer"])


def judge(asked: dict[str, str]) -> dict[str, object]:
    score = 0.9 if "invoice" in asked["plan"] else 0.2
    return {"passed": True, "score": score, "feedback": f"say how this serves: {asked['goal']}"}


def plan(_text: str) -> str:
    return f"<plan>{next(PLANS)}</plan>"


def work(text: str) -> str:
    return text


careful = Step(
    "careful",
    work,
    processing={
        "reasoning_precheck": {
            "enabled": True,
            "validator_agent": judge,
            "max_tokens": 200,
            "timeout_s": 5,
            "score_threshold": 0.7,
            "required_context_keys": ["scratchpad.goal"],
            "inject_feedback": "prepend",
            "retry_guidance_prefix": "Mind this: ",
            "delimiters": ["<plan>", "</plan>"],
            "goal_context_key": "scratchpad.goal",
            "consensus_agent": plan,
            "consensus_samples": 2,
            "consensus_threshold": 1.0,
        }
    },
)


def peek(_text: str, *, context: PipelineContext) -> str:
    return str(getattr(context, "hint", "no hint"))


hinted = Step(
    "hinted",
    peek,
    processing={
        "reasoning_precheck": {
            "enabled": True,
            "agent": judge,
            "required_context_keys": ["scratchpad.customer"],
            "inject_feedback": "context_key",
            "context_feedback_key": "hint",
        }
    },
)


def in_cents(order: dict[str, float]) -> dict[str, float]:
    return {**order, "price": round(100 * order["price"])}


priced = Step(
    "priced", order, processing=read_order.processing, processors=AgentProcessors(output_processors=[in_cents])
)
