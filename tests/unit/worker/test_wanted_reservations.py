"""What an attempt is claimed with under limits: a step's agents are asked once in each process, and no thread is taken for what is known."""

from flujo_client import Pipeline, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts import claim
from flujo_worker.testing import LocalEngine
from tests.support.priced_model import PricedModel

LIMITS = UsageLimits(total_tokens_limit=100)


async def answer(data):
    return AgentAnswer(data)


def looked_up(monkeypatch, engine, pipeline, runs):
    """How often the agents of a pipeline were looked up in so many runs, and what each of its attempts reserved."""
    steps, calls_of = [], claim.calls_of
    monkeypatch.setattr(
        claim, "calls_of", lambda step, *rest, **named: steps.append(step.name) or calls_of(step, *rest, **named)
    )
    results = [engine.run(pipeline, "in", limits=LIMITS) for _ in range(runs)]
    assert all(each.success for each in results)
    return steps, [attempt.estimate_tokens for each in results for attempt in engine.history(each.run_id)]


def test_the_agents_of_a_step_are_looked_up_once(monkeypatch):
    pipeline = Pipeline([Step(name, answer, config=StepConfig(expected_tokens=7)) for name in "ab"])
    with LocalEngine(Settings()) as engine:
        assert looked_up(monkeypatch, engine, pipeline, 3) == (["a", "b"], [7] * 6)


def test_a_step_that_says_what_it_costs_has_no_prompt_read_for_it(monkeypatch):
    """M-044: what is reserved must stay cheap."""
    monkeypatch.setattr(claim, "prompt_bytes", lambda *_: 1 / 0)
    config = StepConfig(expected_tokens=7, expected_cost_usd=0.1)
    pipeline = Pipeline([Step("a", make_agent_async(PricedModel()), config=config)])
    with LocalEngine(Settings()) as engine:
        assert looked_up(monkeypatch, engine, pipeline, 2)[1] == [7, 7]


def test_a_known_step_is_claimed_without_a_thread(monkeypatch):
    """M-044: nothing blocks where prices and prompt are in this process."""
    pipeline = Pipeline([Step("a", make_agent_async(PricedModel()), config=StepConfig(max_tokens=9))])
    with LocalEngine(Settings()) as engine:
        asked, look_up = [], engine.attempts.claims._look_up
        monkeypatch.setattr(engine.attempts.claims, "_look_up", lambda *given: asked.append(given) or look_up(*given))
        for _ in range(3):
            assert engine.run(pipeline, "in", limits=LIMITS).success
    assert len(asked) == 1


def test_what_a_claim_reserves_is_known_beforehand_once_its_step_was_claimed(monkeypatch):
    """Then the merge before it can claim it too, under limits (ADR 16)."""
    pipeline = Pipeline([Step("a", answer, config=StepConfig(expected_tokens=7))])
    with LocalEngine(Settings()) as engine:
        claims, told = engine.attempts.claims, []
        find_parameters = claims.find_parameters

        async def recorded(envelope):
            known = claims.known_reservations(envelope)
            request = await find_parameters(envelope)
            told.append((known, request.to_reserve))
            return request

        monkeypatch.setattr(claims, "find_parameters", recorded)
        for _ in range(2):
            assert engine.run(pipeline, "in", limits=LIMITS).success
    [(before, _), (known, reserved)] = told
    assert (before, known) == (None, reserved)
    assert [each.requested.tokens for each in reserved] == [7]


def test_a_renewal_while_the_import_s_claim_is_released_cancels_nothing(monkeypatch):
    """ADR 13: the attempt's second claim would be left without anyone who works on it, until the lease of its worker ends."""
    pipeline = Pipeline([Step("a", answer, config=StepConfig(expected_tokens=7))])
    with LocalEngine(Settings()) as engine:
        catalog, defer = engine.attempts.catalog, engine.stores.attempts.defer
        known, has = iter([False] * 3), catalog.has
        monkeypatch.setattr(catalog, "has", lambda reference: next(known, has(reference)))

        def defer_and_renew(*given, **more):
            moved = defer(*given, **more)
            engine.lease._renew()
            return moved

        monkeypatch.setattr(engine.stores.attempts, "defer", defer_and_renew)
        assert engine.run(pipeline, "in", limits=LIMITS).success
        assert next(known, None) is None
