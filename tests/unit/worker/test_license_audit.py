"""The licence audit as a pipeline: one branch for each distribution, asked again in doubt, and what follows."""

import asyncio

import pytest
from flujo_demo.license_audit import ANSWER_WITHIN_S, asked, judge, list_distributions, pipeline
from flujo_demo.license_facts import DistributionMetadata, LicenseVerdict, duties, installed_distributions
from flujo_demo.ruling import BY_DEFAULT, Ruling

from flujo_client.errors import ResumeError

MIT_TEXT = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put distributions where `importlib.metadata` finds them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name, *headers, file=None):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        said = ("Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *headers)
        (folder / "METADATA").write_text("\n".join(said))
        (folder / "RECORD").write_text("".join(f"{folder.name}/{each},,\n" for each in ("METADATA", "LICENSE")))
        if file is not None:
            (folder / "LICENSE").write_text(file)

    return put


def audited(engine, *names):
    run = engine.enqueue(pipeline, list(names))
    engine.drain()
    engine.pass_time(ANSWER_WITHIN_S)  # no one answers
    result = engine.result(run).raise_for_status()
    branches = result.step_history[1].step_history
    return result.output.groups, dict(zip(names, branches, strict=True))


def only(groups):
    [[finding]] = groups.values()
    return finding


def test_findings_are_grouped_by_category_each_with_its_evidence(engine):
    """The main job, as one run: a fan-out, and a step behind its join that groups."""
    groups, _ = audited(engine, "pydantic", "psycopg", "celery")
    assert {name: [each.distribution for each in found] for name, found in groups.items()} == {
        "permissive": ["pydantic", "celery"],
        "copyleft": ["psycopg"],
    }
    assert all(each.verdict.evidence and each.version for found in groups.values() for each in found)


@pytest.mark.parametrize("nothing", [None, []])
def test_everything_installed_is_audited_when_nothing_is_asked_for(nothing):
    assert list_distributions(nothing) == installed_distributions()


def test_what_a_branch_found_out_stays_in_it(engine):
    """M-442: nothing is merged; the join has the branches' outputs."""
    context = engine.run(pipeline, ["celery", "psycopg"]).final_pipeline_context
    assert (context.names, context.metadata, context.verdict) == (["celery", "psycopg"], None, None)


def test_one_distribution_that_cannot_be_audited_does_not_fail_the_rest(engine):
    """M-444: it is told, not dropped."""
    groups, _ = audited(engine, "celery", "no-such-thing")
    [failed] = groups["failed"]
    assert (failed.distribution, failed.verdict) == ("no-such-thing", None)
    assert "no distribution named 'no-such-thing' is installed" in failed.note
    assert [each.distribution for each in groups["permissive"]] == ["celery"]


@pytest.mark.parametrize(
    ("header", "rounds"),
    [("License-Expression: MIT", 1), ("License: MIT", 1), ("Classifier: License :: OSI Approved :: MIT License", 2)],
)
def test_in_doubt_the_files_are_asked_too(engine, install, header, rounds):
    """SYS-15: the loop continues while the verdict is not sure."""
    install("thing", header, file=MIT_TEXT)
    groups, branches = audited(engine, "thing")
    assert branches["thing"].step_history[1].attempts == rounds
    assert only(groups).verdict.confidence >= 0.95


def test_what_only_the_files_tell_is_found_there(engine, install):
    install("thing", file=MIT_TEXT)
    verdict = only(audited(engine, "thing")[0]).verdict
    assert (verdict.spdx, verdict.evidence) == (
        "MIT",
        "Permission is hereby granted, free of charge, to any person obtaining a copy",
    )


@pytest.mark.parametrize(
    ("header", "path", "category", "note"),
    [
        ("License: MIT", "default", "permissive", ""),
        ("License: GPLv3+", "duties", "copyleft", "GPL: the source of the whole work must be offered"),
        ("License: Proprietary", "attention", "proprietary", "have a lawyer read its terms"),
        ("License: see the file", "attention", "unknown", "unknown licence"),
        ("Classifier: License :: OSI Approved :: BSD License", "attention", "permissive", "does not settle it"),
    ],
)
def test_what_follows_depends_on_the_verdict(engine, install, header, path, category, note):
    """SYS-16: a path for copyleft, one for what a person must see, and none for the rest."""
    install("thing", header)
    groups, branches = audited(engine, "thing")
    [taken] = branches["thing"].step_history[2].step_history
    assert (taken.name, only(groups).category) == (path, category)
    assert note in only(groups).note


def test_no_one_is_asked_about_what_anybody_may_use(engine):
    result = engine.run(pipeline, ["celery", "psycopg"])
    assert (result.run_status, result.output.ruling) == ("succeeded", None)


@pytest.mark.parametrize("header", ["License: Proprietary", "License: see the file"])
def test_a_person_is_asked_about_the_rest_and_the_default_answers_for_no_one(engine, install, header):
    """M-449: the question says what it is about; the audit waits no longer than a second."""
    install("thing", header)
    run = engine.run(pipeline, ["celery", "thing"]).run_id
    [question] = engine.approvals(run)
    assert "thing 1.0" in question.message
    assert "celery" not in question.message
    engine.pass_time(ANSWER_WITHIN_S)
    assert engine.result(run).output.ruling == BY_DEFAULT


def test_who_is_asked_answers_in_their_own_time(engine, install):
    install("thing", "License: Proprietary")
    run = engine.run(asked, ["thing"]).run_id
    engine.pass_time(86_400.0)
    with pytest.raises(ResumeError, match="does not fit"):
        engine.answer(run, {"approved": "perhaps"})
    result = engine.answer(run, {"approved": True, "note": "we have a contract"})
    assert result.output.ruling == Ruling(approved=True, note="we have a contract")
    assert only(result.output.groups).category == "proprietary"


def test_a_quote_that_does_not_stand_fails_the_branch(engine, install):
    """The validator holds a model that makes things up to the metadata."""
    from flujo_worker.agents.scripted import scripted_model

    install("thing", "License: MIT")
    made_up = LicenseVerdict(spdx="GPL", category="copyleft", confidence=1.0, evidence="GPL, I think")
    with judge.agent.agent.override(model=scripted_model(lambda _: made_up)):
        result = engine.run(pipeline, ["thing"])
    assert result.run_status == "failed"
    assert "the quoted evidence is not in the metadata" in result.step_history[1].feedback


def test_the_offline_model_answers_after_a_failed_attempt_too():
    """Guidance stands behind the metadata then."""
    metadata = DistributionMetadata(name="thing", version="1", license_expression="MIT")
    assert asyncio.run(judge.agent.run(metadata, guidance="it took too long")).output.spdx == "MIT"


@pytest.mark.parametrize(
    ("spdx", "families"),
    [
        ("GPL-2.0-only", ["GPL"]),
        ("lgpl-3.0-or-later", ["LGPL"]),
        ("AGPL", ["AGPL"]),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", ["MPL"]),
        ("GPL-2.0-only AND MPL-2.0 AND GPL-3.0-only", ["GPL", "MPL"]),
        ("CC-BY-SA-4.0", ["CC-BY-SA"]),
        ("Apache-2.0", []),
        ("LicenseRef-GPL-like", []),
    ],
)
def test_duties_are_told_by_family(spdx, families):
    told = duties(LicenseVerdict(spdx=spdx, category="copyleft", confidence=1, evidence=spdx))
    assert [each.partition(":")[0] for each in told.split("; ") if each] == families
