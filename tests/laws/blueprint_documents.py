"""Documents of every kind of step in every other, made of a seed."""

from random import Random
from typing import Any

FUNCTION = "builtins:print"
EXPRESSIONS = ["previous_step > 3", "context.done", "'a' in steps.x.output", "not output"]
TEMPLATES = ["{{ previous_step }}", "Say {{ context.word or 'nothing' }}.", "plain", "{{ this }}\n{{ resume_input }}\n"]
PATHS = ["a", "scratchpad.a", "b.c.d"]
SCHEMAS = [{"type": "integer"}, {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}}]
AGENTS: dict[str, Any] = {
    "writer": {"model": "test", "system_prompt": "Write.\nWell.", "model_settings": {"temperature": 0.5}},
    "judge": {
        "model": "test",
        "output_schema": {"type": "object"},
        "timeout": 3,
        "max_retries": 4,
        "tools": [FUNCTION],
    },
    "careful": {"model": "test", "processing": {"aop": "full", "coercion": {"tolerant_level": 1}}},
}
NAMED = ["agents.writer", "agents.judge", "agents.careful", FUNCTION]
IMPORTS: dict[str, Any] = {
    "child": {"context_model": None, "agents": AGENTS, "steps": [{"name": "x", "uses": "agents.writer"}]},
    "other": {"name": "other", "pipeline_version": "2", "on_change": "pin", "steps": [{"name": "x", "uses": FUNCTION}]},
}
SEARCHERS = ("proposer", "evaluator")
LEAVES = ("plain", "imported", "human", "event", "sleep")
CONTAINERS = (
    "parallel",
    "conditional",
    "loop",
    "map",
    "router",
    "cache",
    "machine",
    "agentic",
    "tree_search",
    "fallback",
)
"""The kinds of step, each a method of `Maker`."""
PROCESSING = [{"aop": "full"}, {"reasoning_precheck": {"enabled": True, "validator_agent": "agents.judge"}}]


class Maker:
    """Makes one document."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def document(self) -> dict[str, Any]:
        return {"name": "law", **self.some(stream=True), "agents": AGENTS, "imports": IMPORTS, "steps": self.steps(3)}

    def some(self, **keys: Any) -> dict[str, Any]:
        """Any of the keys; a list is what the value is chosen from."""
        chosen = {key: value for key, value in keys.items() if self.draw.random() < 0.4}
        return {key: self.draw.choice(value) if isinstance(value, list) else value for key, value in chosen.items()}

    def steps(self, depth: int) -> list[dict[str, Any]]:
        return [{**self.step(depth), "name": f"s{index}"} for index in range(self.draw.randint(1, 2))]

    def body(self, depth: int) -> Any:
        return self.steps(depth) if self.draw.random() < 0.7 else {**self.step(depth), "name": "one"}

    def step(self, depth: int) -> dict[str, Any]:
        name = self.draw.choice(LEAVES if depth == 0 or self.draw.random() < 0.3 else CONTAINERS)
        make = getattr(self, name)
        every = self.some(meta={"a": [1, {"b": None}]}, usage_limits={"total_tokens_limit": 9})
        return {**make(depth - 1), **every}

    def working(self) -> dict[str, Any]:
        config = self.some(
            max_retries=[0, 5], timeout_s=[0.5, 9], temperature=[0.25], stream=[True], backoff={"base_s": 3}
        )
        return self.some(
            input=TEMPLATES, config=config, input_schema=SCHEMAS, processing=PROCESSING, queue="slow",
            prompt_processors=[[FUNCTION]], validators=[[FUNCTION]],
        )  # fmt: skip

    def plain(self, _: int) -> dict[str, Any]:
        own = self.some(sink_to=PATHS, updates_context=[True, False], output_schema=SCHEMAS, strict_validation=[False])
        if own.get("updates_context") and "sink_to" not in own:
            own |= self.some(validate_fields=[True])
        return {"uses": self.draw.choice(NAMED), **self.working(), **own}

    def imported(self, _: int) -> dict[str, Any]:
        outputs = [[], {"a": "b"}, None, [{"child": "a", "parent": "b"}]]
        config = self.some(
            inherit_context=[True], on_failure=["skip"], outputs=outputs, own_run=[True], default=[{"a": 1}]
        )
        return {"uses": self.draw.choice(["imports.child", "imports.other"]), "config": config}

    def human(self, _: int) -> dict[str, Any]:
        return {"kind": "hitl", **self.some(message=TEMPLATES, input_schema=SCHEMAS, sink_to=PATHS, expires_s=[5, 0.5])}

    def event(self, _: int) -> dict[str, Any]:
        return {"kind": "wait_for_event", **self.some(event=["go"], input_schema=SCHEMAS, sink_to=PATHS, timeout_s=[5])}

    def sleep(self, _: int) -> dict[str, Any]:
        times = [{"seconds": 5}, {"seconds": TEMPLATES[0]}, {"until": "2027-01-31T09:00:00+01:00"}]
        return {"kind": "sleep", **self.draw.choice(times)}

    def fan_out(self) -> dict[str, Any]:
        strategies = ["no_merge", "overwrite", FUNCTION]
        return self.some(on_branch_failure=["ignore"], max_concurrency=[1, 3], merge_strategy=strategies)

    def branches(self, depth: int) -> dict[str, Any]:
        bodies = {name: self.body(depth) for name in self.draw.sample(["a", "b", "c"], 2)}
        more = self.some(
            reduce=["keys", FUNCTION], ignore_branch_names=[True], field_mapping={next(iter(bodies)): ["a"]}
        )
        return {"branches": bodies, **self.fan_out(), **more}

    def parallel(self, depth: int) -> dict[str, Any]:
        return {"kind": "parallel", **self.branches(depth), **self.some(config={"execution_mode": "background"})}

    def router(self, depth: int) -> dict[str, Any]:
        router = {"router_agent": self.draw.choice(NAMED), **self.branches(depth)}
        return {"kind": "dynamic_router", "router": router, **self.working()}

    def conditional(self, depth: int) -> dict[str, Any]:
        asked = self.draw.choice([{"condition": FUNCTION}, {"condition_expression": EXPRESSIONS[0]}])
        bodies = {key: self.body(depth) for key in self.draw.sample([True, "x", 3], 2)}
        more = self.some(branch_input_mapper=FUNCTION, branch_output_mapper=FUNCTION, default_branch=self.body(0))
        return {"kind": "conditional", **asked, "branches": bodies, **more}

    def changes(self) -> dict[str, Any]:
        value = self.draw.choice([*TEMPLATES, {"a": ["{{ output }}", 1]}])
        return self.some(**{key: [[{"target": "scratchpad.a", "value": value}]] for key in ("set", "append", "merge")})

    def loop(self, depth: int) -> dict[str, Any]:
        ends = [{"exit_condition": FUNCTION}, {"exit_expression": EXPRESSIONS[1]}, {"stop_when": "agent_finished"}]
        next_ones = ["context", "auto", "previous_output", {"next_input": "{{ this }}"}]
        follows = [{}, {"iteration_input_mapper": FUNCTION}, *({"propagation": each} for each in next_ones)]
        more = self.some(
            max_loops=[1, 9], fails_at_max=[True], init=self.changes(), state=self.changes(), output=TEMPLATES
        )
        own = {**self.draw.choice(ends), **self.draw.choice(follows), **self.conversation(), **more}
        return {"kind": "loop", "loop": {"body": self.body(depth), **own}}

    def conversation(self) -> dict[str, Any]:
        managed = [{}, {"strategy": "summarize", "summarize_ratio": 0.3}, {"max_tokens": 99}]
        template = "{{#each history}}{{ this.content }}{{/each}}"
        more = self.some(
            history_management=managed,
            history_template=template,
            ai_turn_source=["last", "all_agents"],
            user_turn_sources=[[], ["hitl"]],
        )
        return self.draw.choice([{}, {"conversation": True, **more}])

    def map(self, depth: int) -> dict[str, Any]:
        side_by_side = {"parallel": True, **self.fan_out()} if self.draw.random() < 0.5 else {}
        finals = [*TEMPLATES, {"output": {"all": TEMPLATES[0]}}, {"output_template": "x"}, {"output_mapper": FUNCTION}]
        more = self.some(init=self.changes(), finalize=finals)
        where = self.draw.choice([*PATHS, "{{ context.a }}", "steps.x.output"])
        return {"kind": "map", "map": {"iterable_input": where, "body": self.body(depth), **side_by_side, **more}}

    def tree_search(self, depth: int) -> dict[str, Any]:
        who = {name: self.draw.choice(["agents.judge", FUNCTION, self.body(depth)]) for name in SEARCHERS}
        bounds = self.some(beam_width=[1, 4], max_iterations=[7], goal_score_threshold=[0, 0.5], require_goal=[True])
        return {"kind": "tree_search", **who, **bounds}

    def cache(self, _: int) -> dict[str, Any]:
        kept = {**self.plain(0), "name": "kept"}
        if kept.get("input") not in (None, "plain", "{{ previous_step }}"):  # the others read more than what comes in
            del kept["input"]
        return {"kind": "cache", "wrapped_step": kept, **self.some(ttl_s=[0, 9.5], single_flight_s=[0, 2.5])}

    def machine(self, depth: int) -> dict[str, Any]:
        leads = [
            {
                "from": self.draw.choice(["a", "*"]),
                "to": "end",
                **self.some(on=["success", "failure"], when=[*EXPRESSIONS, FUNCTION]),
            }
            for _ in range(self.draw.randint(0, 2))
        ]
        states = {"a": self.body(depth), "b": self.body(depth)}
        ways = [*leads, {"from": "b", "to": "end"}]
        own = {
            "states": states,
            "start_state": "a",
            "end_states": ["end"],
            "transitions": ways,
            **self.some(max_visits=[3]),
        }
        return {"kind": "StateMachine", **own}

    def agent(self) -> Any:
        entries = [{"model": "test", **self.some(timeout=[2, 2.5], max_retries=[0, 3], processing=PROCESSING)}]
        return self.draw.choice([*NAMED, {"id": "agents.judge"}, *entries])

    def agentic(self, _: int) -> dict[str, Any]:
        registry = {name: self.agent() for name in self.draw.sample(["a", "b", "c"], 2)}
        more = self.some(
            max_loops=[1, 9],
            fails_at_max=[True],
            on_agent_failure=["tell", "abort"],
            output_template=TEMPLATES,
            ask_expires_s=[60, 0.5],
        )
        return {"kind": "agentic_loop", "planner": self.agent(), "registry": registry, **more}

    def fallback(self, _: int) -> dict[str, Any]:
        return {**self.plain(0), "fallback": {**self.plain(0), "name": "else"}}
