"""The first call of a model imports its provider's SDK: that blocks no loop, takes no step's time, and is blamed on nobody."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flujo_client import Pipeline, Settings, Step
from flujo_worker import LocalEngine, make_agent_async
from tests.support.openai_server import OpenAIServer

TESTS = Path(__file__).parents[2]
FRESH = textwrap.dedent("""
    import importlib.machinery, json, logging, sys, threading, time

    threads, warnings = [], []

    class Slow(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "openai":
                threads.append(threading.current_thread().name)
                time.sleep(3.0)
            return super().find_spec(name, path, target)

    sys.meta_path.insert(0, Slow)
    from flujo_client import Pipeline, Step, StepConfig
    from flujo_client.config.manager import Settings
    from flujo_worker.agents import make_agent_async
    from flujo_worker.testing import LocalEngine

    class Kept(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())

    logging.getLogger("flujo_worker").addHandler(Kept(logging.WARNING))
    agent = make_agent_async("openai-chat:gpt-4o")
    step = Step("ask", agent, config=StepConfig(timeout_s=2.5, max_retries=0))
    with LocalEngine(Settings.model_validate({"worker": {"loop_blocked_s": 1.5}})) as engine:
        result = engine.run(Pipeline([step]), "in")
        story = [each.name for each in engine.story(result.run_id)]
    print(json.dumps([result.success, result.output, threads, warnings, story]))
""")


@pytest.mark.large
def test_an_sdk_is_imported_in_a_thread_before_the_steps_time_begins():
    """The import alone takes longer than the step may: 3 s of 2.5."""
    with OpenAIServer(["fine"]) as server:
        own = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": server.url, "PYTHONPATH": str(TESTS.parent)}
        done = subprocess.run(
            [sys.executable, "-c", FRESH], env=os.environ | own, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    success, output, threads, warnings, story = json.loads(done.stdout.splitlines()[-1])
    assert (success, output, warnings) == (True, "fine", [])
    assert threads
    assert not {"flujo-loop", "flujo-engine"} & set(threads)
    assert "step.blocked_loop" not in story


def test_an_agent_whose_model_cannot_be_made_fails_its_attempt(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with LocalEngine() as engine:
        result = engine.run(Pipeline([Step("ask", make_agent_async("openai:gpt-4o"))]), "in")
    assert "OPENAI_API_KEY" in result.step_history[0].feedback


def test_a_library_that_blocks_the_loop_is_not_blamed_on_the_step(caplog):
    """Here the clients of pydantic-ai, as an SDK that parses its configuration late would."""
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models import Model

    code = "import time\nasync def request(self, messages, model_settings, model_request_parameters):\n time.sleep(1.5)\n return answer()\n"
    space = {"__name__": "pydantic_ai.models.slow", "answer": lambda: ModelResponse([TextPart("late")])}
    exec(code, space)
    traits = {"request": space["request"], "model_name": "slow", "system": "slow"}
    slow = type("Slow", (Model,), traits)()
    caplog.set_level(logging.WARNING)
    with LocalEngine(Settings.model_validate({"worker": {"loop_blocked_s": 0.3}})) as engine:
        result = engine.run(Pipeline([Step("ask", make_agent_async(slow))]), "in")
        story = [each.name for each in engine.story(result.run_id)]
    assert result.output == "late"
    assert "step.blocked_loop" not in story
    [told] = [line for line in caplog.messages if "event loop" in line and "again" not in line]
    assert told.startswith("the event loop does not answer")
    assert result.run_id not in told
