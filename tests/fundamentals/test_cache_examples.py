"""What the documents show of cached steps does what they say."""

from __future__ import annotations

import pytest

from examples import translate
from flujo_worker.testing import LocalEngine


@pytest.fixture(autouse=True)
def asked():
    translate.ASKED.clear()
    return translate.ASKED


def test_a_text_is_translated_once_a_day(asked):
    with LocalEngine() as engine:
        results = [engine.run(translate.pipeline, "Biene und Stock", context={"words": words}) for words in (0, 7)]
        engine.pass_time(86_401)
        engine.run(translate.pipeline, "Biene und Stock")
    contexts = [each.final_pipeline_context for each in results]
    assert contexts == [translate.Page(words=words, title="bee und hive") for words in (3, 10)]
    assert asked == ["Biene und Stock"] * 2
    assert results[1].step_history[0].metadata_ == {"cache_hit": True}


def test_a_folder_keeps_results_for_every_process(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(translate.folder, "_path", tmp_path / "kept")
    for _ in range(2):
        with LocalEngine() as engine:
            assert engine.run(translate.by_folder, "Biene").output == "bee"
    assert asked == ["Biene"]
    translate.folder.set("k", b"x", -1)
    assert translate.folder.get("k") is None
