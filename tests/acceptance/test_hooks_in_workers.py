"""Hooks in real processes: called, obeyed, and not lost when a process dies (§2.1, §2.9, SYS-20)."""

import hook_pipelines as pipelines
import pytest

from flujo_client import Flujo
from flujo_client.config.models import HookSettings
from flujo_client.errors import PipelineAbortSignal, UsageLimitExceededError
from tests.support.fleet import BRISK, PATIENCE_S, one_process, wait_until, whole_lines

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]


def notes(site, run):
    """What hooks were told of a run, each thing once: on leases as short as these it may have been told twice."""
    return list(dict.fromkeys(whole_lines(site.folder / f"hooks-{run}")))


def told_of_its_end(site, run):
    """Wait until nothing is owed any more; what hooks were told."""
    owed = "SELECT count(*) AS n FROM flujo_hook_calls WHERE run_id = %(run)s"
    wait_until(lambda: any(line.startswith("post_run") for line in notes(site, run)), what=site.log)
    wait_until(lambda: site.rows(owed, run=run)[0]["n"] == 0, what=site.log)
    return notes(site, run)


def served(site):
    """Whoever is alive serves; a worker is started where no one is."""
    if not site.live_pids():
        site.standing()


def enqueued(site, name, **rest):
    return site.client.enqueue(f"hook_pipelines:{name}", 1, **rest)


@pytest.mark.large
@one_process
def test_who_is_killed_around_post_run_is_followed_by_another(site):
    """The end is committed and the hooks are told at least once: one dies before the call, one after it and before that is recorded."""
    places = ("hook_call_taken", "hooks_called")
    markers = {place: site.folder / place for place in places}
    fleet = site.workers(3, failpoints=";".join(f"{place}:kill:{marker}" for place, marker in markers.items()))
    run = enqueued(site, "ended")
    assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
    assert told_of_its_end(site, run.id) == ["pre_run", "pre_step a", "post_step a", "post_run succeeded"]
    assert (all(marker.exists() for marker in markers.values()), len(fleet.pids)) == (True, 1)
    assert run.result(timeout=PATIENCE_S).run_status == "succeeded"


def test_each_hook_is_told_in_its_turn(site):
    """§2.9: all six, of one run that asks a person and fails."""
    served(site)
    run = enqueued(site, "told")
    wait_until(lambda: "on_pause_requested ask" in notes(site, run.id), what=site.log)
    run.resume("yes")
    assert run.result(timeout=PATIENCE_S).run_status == "failed"
    assert told_of_its_end(site, run.id) == [
        "pre_run",
        "pre_step a",
        "post_step a",
        "on_pause_requested ask",
        "post_step ask",
        "pre_step b",
        "on_step_failure b",
        "post_run failed",
    ]


def test_the_facades_hooks_reach_the_workers_by_name_and_stop_the_run(site):
    """§2.1, §2.9: an abort in pre_step is the run's, with its class, at the client."""
    served(site)
    with Flujo(pipelines.plain, hooks=[pipelines.note, pipelines.stop], settings=site.settings) as flujo:
        result = flujo.run(1, timeout=PATIENCE_S)
    with pytest.raises(PipelineAbortSignal, match="not a"):
        result.raise_for_status()
    assert told_of_its_end(site, result.run_id) == ["pre_run", "pre_step a", "post_run failed"]


def test_an_abort_in_post_run_does_not_mask_a_limit(site):
    """§2.1: the limit's error and the partial result are persisted; what the hook raised is told."""
    served(site)
    run = enqueued(site, "dear", limits=pipelines.LIMITS)
    result = run.result(timeout=PATIENCE_S)
    told_of_its_end(site, run.id)
    with pytest.raises(UsageLimitExceededError):
        run.result(timeout=PATIENCE_S).raise_for_status()
    assert result.step_history[0].output == 1
    failed = site.events(run.id, "hook.failed")[0]["data"]
    assert (failed["hook"], failed["error"], failed["message"]) == ("stop_late", "PipelineAbortSignal", "too late")


def test_an_error_in_a_hook_is_told_and_breaks_nothing(site):
    served(site)
    run = enqueued(site, "stumbling")
    assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
    [failed] = [event["data"] for event in site.events(run.id, "hook.failed")]
    assert (failed["hook"], failed["payload"], failed["error"]) == ("stumble", "pre_step", "OSError")
    assert "hunter2" not in failed["message"]


def test_where_hooks_are_strict_an_error_ends_the_run(site):
    """§2.9: as the workers' settings say."""
    site.dismiss()
    lenient, site.settings = site.settings, site.settings.model_copy(update={"hooks": HookSettings(strict=True)})
    try:
        site.workers()
        result = enqueued(site, "stumbling").result(timeout=PATIENCE_S)
    finally:
        site.settings = lenient
        site.dismiss()
    assert (result.run_status, result.error.type_name) == ("failed", "OSError")
