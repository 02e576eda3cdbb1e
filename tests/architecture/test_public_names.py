"""What users may import is a list, and this is the lock on it. Importing the client stays cheap."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import flujo_client
import flujo_worker
from flujo_client.gateway.door import SCHEMA
from flujo_worker.store.migrate import migrations, needed

ROOT = Path(__file__).parents[2]
MOST_MODULES = 304
"""Modules of ours that a worker imports before it loads a pipeline."""
SECONDS = 0.35
HEAVY = ("celery.worker", "celery.app", "pydantic_ai", "psycopg_pool", "structlog", "flujo_worker")

CLIENT = [
    "Aborted",
    "AgentCommand",
    "AgentProcessors",
    "AgenticLoopStep",
    "Approval",
    "AskHumanCommand",
    "AsyncFlujoClient",
    "AsyncRunHandle",
    "AttemptInfo",
    "BackgroundLaunched",
    "Backoff",
    "BranchFailureStrategy",
    "CacheBackend",
    "CacheStep",
    "Candidate",
    "Checklist",
    "ChecklistItem",
    "Chunk",
    "ConditionalStep",
    "ConfigManager",
    "ContextState",
    "ConversationTurn",
    "DynamicParallelRouterStep",
    "EvaluatorInput",
    "ExecutedCommandLog",
    "Failure",
    "FinishCommand",
    "Flujo",
    "FlujoClient",
    "FlujoError",
    "HistoryManagement",
    "HookPayload",
    "HumanInTheLoopStep",
    "HumanInteraction",
    "ImportStep",
    "InMemoryCache",
    "Limit",
    "LoopStep",
    "MapStep",
    "MergeStrategy",
    "NonRetryableError",
    "OnPauseRequestedPayload",
    "OnStepFailurePayload",
    "ParallelStep",
    "Paused",
    "Pipeline",
    "PipelineContext",
    "PipelineRegistry",
    "PipelineResult",
    "PluginOutcome",
    "PostRunPayload",
    "PostStepPayload",
    "PreRunPayload",
    "PreStepPayload",
    "ProposerInput",
    "Refinement",
    "RefinementCheck",
    "RunAgentCommand",
    "RunHandle",
    "RunLimit",
    "RunRequest",
    "Schedule",
    "ScheduleRecord",
    "Settings",
    "Sleep",
    "SleepUntil",
    "StateMachineStep",
    "Step",
    "StepConfig",
    "StepResult",
    "Success",
    "TaskClient",
    "Throttle",
    "TraceNode",
    "Transition",
    "TreeSearchResult",
    "TreeSearchStep",
    "UnitInfo",
    "UsageEstimate",
    "UsageGovernor",
    "UsageLimitExceededError",
    "UsageLimits",
    "ValidationResult",
    "WaitForEvent",
    "current_attempt",
    "current_unit",
    "make_agentic_loop_pipeline",
    "make_default_pipeline",
    "register_custom_deserializer",
    "register_custom_serializer",
    "run_agentic_loop_pipeline",
    "run_default_pipeline",
    "safe_deserialize",
    "safe_serialize",
    "step",
    "validator",
]

WORKER = {
    "flujo_worker.agents": [
        "CANNOT_REPAIR",
        "AgentResult",
        "AgentTool",
        "BaseAgent",
        "FlujoAgent",
        "ImprovementReport",
        "ImprovementSuggestion",
        "PlanGeneratorAgent",
        "TemplatedAgent",
        "make_agent_async",
        "make_reflection_agent",
        "make_repair_agent",
        "make_review_agent",
        "make_self_improvement_agent",
        "make_solution_agent",
        "make_templated_agent_async",
        "make_validator_agent",
    ],
    "flujo_worker.agents.prompts": ["render_template", "render_text"],
    "flujo_worker.agents.scripted": ["scripted_model"],
    "flujo_worker.celery_app.app": ["FlujoWorker"],
    "flujo_worker.testing": ["Cassette", "DatabaseClock", "Faults", "LocalEngine", "RecordedRun"],
}
"""The worker's doors that the documents name."""


def loaded_by(code):
    """Run code in a separate process; return how long it took and which modules it loaded."""
    told = "import json, sys, time; began = time.process_time(); exec(sys.argv[1]); took = time.process_time() - began"
    told += "; print(json.dumps([took, sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", told, code], cwd=ROOT, capture_output=True, text=True, check=True)
    took, modules = json.loads(done.stdout)
    return took, modules


def heavy(modules):
    return [name for name in modules if any(name == each or name.startswith(f"{each}.") for each in HEAVY)]


def test_the_clients_names_are_these():
    """House §9, pinned surface: no name comes or goes by accident."""
    assert flujo_client.__all__ == CLIENT


def test_every_name_is_there_and_comes_from_where_it_is_said_to():
    assert set(flujo_client._HOME) == set(CLIENT)
    for name in CLIENT:
        assert getattr(flujo_client, name) is getattr(import_module(f"flujo_client.{flujo_client._HOME[name]}"), name)


def test_another_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        _ = flujo_client.Manager


@pytest.mark.parametrize("package", [flujo_client, flujo_worker])
def test_a_package_completes_and_knows_its_version(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert package.__version__ == project["version"]
    assert set(package.__all__) | {"__version__"} <= set(dir(package))
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.processes
def test_all_that_authors_need_is_in_one_place():
    """The client's names and those of agents and workers, without loading a worker's libraries before they are needed."""
    assert set(flujo_client.__all__) < set(flujo_worker.__all__)
    assert flujo_worker.Step is flujo_client.Step
    for name, home in flujo_worker._HOME.items():
        assert getattr(flujo_worker, name) is getattr(import_module(f"flujo_worker.{home}"), name)
    _, modules = loaded_by("import flujo_worker; flujo_worker.Step, dir(flujo_worker)")
    assert set(heavy(modules)) == {"flujo_worker"}
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        _ = flujo_worker.Manager


@pytest.mark.processes
def test_a_name_whose_library_is_missing_says_what_to_install():
    code = "import sys; sys.modules['structlog'] = None\nfrom flujo_worker import make_agent_async"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "needs structlog, a worker's library: pip install 'flujo-worker[worker]'" in done.stderr


@pytest.mark.parametrize(("module", "names"), WORKER.items())
def test_the_workers_doors_are_there(module, names):
    assert [name for name in names if not hasattr(import_module(module), name)] == []


def test_the_agents_door_gives_nothing_else():
    assert import_module("flujo_worker.agents").__all__ == WORKER["flujo_worker.agents"]


def test_every_command_that_joins_can_be_loaded():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["flujo.commands"]
    assert sorted(points) == ["beat", "chaos", "demo", "migrate", "up", "worker"]
    for place in points.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize(
    "code",
    ["import flujo_client", "from flujo_client import *", "import flujo_client.cli.main"],
    ids=["package", "names", "command"],
)
@pytest.mark.processes
def test_what_is_heavy_is_loaded_when_it_is_used(code):
    """Design §8, M-010: neither the package, nor its names, nor the command line's door loads a worker."""
    assert heavy(loaded_by(code)[1]) == []


@pytest.mark.processes
def test_a_heavy_import_would_be_seen():
    assert heavy(loaded_by("import flujo_worker.observe.log")[1])


@pytest.fixture(scope="module")
def imported_by_a_worker():
    """What a worker has imported before it loads a pipeline."""
    return loaded_by("import flujo_worker.cli.serving, flujo_worker.engine.host, celery.apps.worker")[1]


@pytest.mark.processes
def test_a_worker_starts_without_the_library_of_agents(imported_by_a_worker):
    """It costs a third of a start; a worker loads it with the first pipeline that has its own agent."""
    assert "pydantic_ai" not in imported_by_a_worker


@pytest.mark.processes
def test_a_worker_starts_without_what_only_some_runs_and_commands_need(imported_by_a_worker):
    rare = re.compile(
        r"flujo_(client\.(blueprint|embedded|api|metrics)|worker\.(aros|chaos|replay|testing|observe\.metrics|store\.memory))\b|flujo_demo|prometheus_client"
    )
    assert [name for name in imported_by_a_worker if rare.match(name)] == []
    assert len([name for name in imported_by_a_worker if name.startswith("flujo_")]) <= MOST_MODULES


def test_importing_the_client_is_quick():
    """Design §8: at most 0.35 s, once in twenty times: it takes longer beside other jobs."""
    assert any(loaded_by("import flujo_client")[0] <= SECONDS for _ in range(20))


def test_the_client_knows_the_newest_schema():
    """The client and the worker refuse the same databases."""
    newest = migrations()[-1]
    assert (needed(), newest.version) == (SCHEMA, len(migrations()))
    assert re.fullmatch(r"\w+", newest.name)
