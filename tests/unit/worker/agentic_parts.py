"""Parts of the tests of agentic loops: a planner with scripted answers, and the recorded turns."""

from typing import Any

from container_parts import of

from flujo_client import AgenticLoopStep, Pipeline, PipelineResult


def run(name: str, data: Any = "x") -> dict[str, Any]:
    """Have an agent do something."""
    return {"type": "run_agent", "agent_name": name, "input_data": data}


def ask(question: str = "go on?") -> dict[str, Any]:
    """Ask a person."""
    return {"type": "ask_human", "question": question}


def finish(answer: Any = "done") -> dict[str, Any]:
    """End the loop."""
    return {"type": "finish", "final_answer": answer}


class Planner:
    """Says the next of its answers each time it is asked, the last one forever, and remembers what it received."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.told, self.guidance = answers, [], []

    def run(self, data: Any, *, guidance: str | None = None) -> Any:
        """Say the next one."""
        self.told.append(data)
        self.guidance.append(guidance)
        return self.answers[min(len(self.told), len(self.answers)) - 1]


def upper(text: str) -> str:
    """An agent."""
    return text.upper()


def loop(planner: Any, registry: Any = None, *, name: str = "loop", **options: Any) -> AgenticLoopStep:
    """A loop with an agent `upper`."""
    return AgenticLoopStep(name, planner=planner, registry=registry or {"upper": upper}, **options)


def looped(planner: Any, registry: Any = None, **options: Any) -> Pipeline:
    """A pipeline of it, with a context."""
    return of(loop(planner, registry, **options))


def turns(result: PipelineResult, address: str = "loop") -> list[tuple[int, str, Any]]:
    """A loop's turns as they were written down: number, kind of command, result."""
    log = result.final_pipeline_context.command_log
    return [(each.turn, each.command.type, each.result) for each in log if each.loop == address]


def plan(brief: dict[str, Any]) -> dict[str, Any]:
    """Have the goal written large, and finish with that."""
    log = brief["command_log"]
    return finish(log[-1]["result"]) if log else run("upper", brief["goal"])


def fail(data: Any) -> Any:
    """An agent that fails."""
    raise ValueError("out of order")
