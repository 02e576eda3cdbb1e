"""Broken `flujo.toml` files: each is refused with the file, the line, the key and the way out, and shows no secret (requirements §2.7).

Beside each file of `broken_config` stands the whole of what is said about it, `{file}` in the place of its path.
"""

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from flujo_client.config.manager import ConfigManager
from flujo_client.errors import SettingsError

CORPUS = Path(__file__).parent / "broken_config"
FILES = sorted(CORPUS.glob("*.toml"))


def refusal(path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        ConfigManager(path, environ={}).settings()
    return str(caught.value)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_broken_file_is_refused_with_its_place(file):
    expected = file.with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")
    assert refusal(file).replace(str(file), "{file}") == expected
    assert "hunter2" not in expected


def test_every_text_is_of_a_file():
    assert {text.stem for text in CORPUS.glob("*.txt")} == {file.stem for file in FILES}
    assert len(FILES) >= 20


def test_a_folder_in_its_place_is_refused_wherever_it_is_found(tmp_path, monkeypatch):
    """A search that went past it would take the settings of another project."""
    (tmp_path / "flujo.toml").write_text("mode = 'development'")
    (tmp_path / "inner" / "flujo.toml").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(SettingsError, match=r"inner/flujo\.toml: cannot be read \(Is a directory\)"):
        ConfigManager(environ={}).settings()


@pytest.mark.parametrize("target", ["flujo.toml", "nowhere"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path, monkeypatch, target):
    (tmp_path / "flujo.toml").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"flujo\.toml: cannot be read"):
        ConfigManager(environ={}).settings()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    (file := tmp_path / "flujo.toml").touch(mode=0o000)
    assert "cannot be read (Permission denied)" in refusal(file)


def test_a_file_that_is_far_too_large_costs_no_memory(tmp_path):
    """100 MB, of which no more is read than it takes to see that."""
    with (file := tmp_path / "flujo.toml").open("wb") as out:
        out.truncate(100_000_000)
    tracemalloc.start()
    try:
        assert "the file is larger than 1048576 bytes" in refusal(file)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


HOSTILE = {
    "one key of many parts": "a" + ".a" * 500_000 + " = 1",
    "many parts inside of a table": "x = {a" + ".a" * 400_000 + " = 1}",
    "many long texts that nobody closes": '"""\n\\' * 200_000,
    "many quotes": '"' * 1_000_000,
    "many brackets": "[" * 1_000_000,
    "many unknown keys": "".join(f"k{number} = 1\n" for number in range(20_000)),
    "many unknown sections": "".join(f"[k{number}]\n" for number in range(20_000)),
    "one long name": "k" * 1_000_000 + " = 1",
    "many escapes": 'x = "' + "\\\\" * 400_000 + '"',
}


@pytest.mark.large
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_file_keeps_the_reader_busy(tmp_path, text):
    (file := tmp_path / "flujo.toml").write_text(text)
    begun = time.process_time()
    said = refusal(file)
    assert time.process_time() - begun < 30
    assert len(said) < 20_000
