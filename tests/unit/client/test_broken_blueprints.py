"""Every blueprint of `broken_blueprints` has exactly the findings that its first comments tell (§2.6, U-44).

A line of them is `# line:column RULE key: problems -> what was likely meant`; `(warning)` stands behind the rule of one. A finding in
an imported file has that before its line.
"""

import re
import sys
from pathlib import Path

import pytest

from flujo_client import Pipeline
from flujo_client.blueprint.rules.table import RULES
from flujo_client.blueprint.validate import validate
from flujo_client.errors import BlueprintError

FOLDER = Path(__file__).parent / "broken_blueprints"
FILES = sorted(FOLDER.glob("*.yaml"))
EXPECTED = re.compile(r"# (?:(\S+\.yaml):)?(\d+|-):(\d+|-) (\S+)( \(warning\))? (\S*): (.*?)(?: -> (.*))?")
NO_FILE_NEEDED = {"Y-LIMIT", "V-T8"}
"""Rules about what a corpus should not have to carry, see test_hostile_blueprints.py; and about settings, see test_template_filters.py."""


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(FOLDER)
    monkeypatch.setitem(sys.modules, "anthropic", None)


def expected(file):
    lines = []
    for line in file.read_text().splitlines():
        if not line.startswith("# "):
            return lines
        lines.append(EXPECTED.fullmatch(line).groups())
    return lines


def row_of(finding, file):
    place = (None if finding.file == file.name else finding.file, str(finding.line or "-"), str(finding.column or "-"))
    warning = " (warning)" if finding.severity == "warning" else None
    return (*place, finding.rule, warning, finding.key)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_wrong_is_told_with_its_place(file):
    found, wanted = validate(file.name, allowed=("*",)).findings, expected(file)
    assert [row_of(each, file) for each in found] == [each[:6] for each in wanted]
    for finding, (*_, message, nearest) in zip(found, wanted, strict=True):
        assert finding.message.startswith(message)
        assert finding.nearest == nearest


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_errors_refuse_and_warnings_do_not(file):
    """The errors that refuse it are those that are told of it."""
    errors = validate(file.name, allowed=("*",)).errors
    if not errors:
        Pipeline.from_yaml_file(file.name, allowed=("*",))
        return
    with pytest.raises(BlueprintError) as refused:
        Pipeline.from_yaml_file(file.name, allowed=("*",))
    assert refused.value.findings == errors


def test_every_rule_is_broken_by_one():
    found = {finding.rule for file in FILES for finding in validate(file.name, allowed=("*",)).findings}
    assert set(RULES) - NO_FILE_NEEDED == found
    assert len(FILES) >= 60


@pytest.mark.parametrize("file", [file for file in FILES if "-" in file.stem], ids=lambda file: file.stem)
def test_a_file_named_for_a_rule_breaks_it(file):
    assert file.stem.partition("_")[0] in {finding.rule for finding in validate(file.name, allowed=("*",)).findings}
