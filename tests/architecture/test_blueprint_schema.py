"""The JSON Schema of blueprints: the committed copy is what the code makes, and it takes and refuses what reading does (§2.6)."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.read import read
from flujo_client.blueprint.rules.table import RULES
from flujo_client.blueprint.validate import validate
from flujo_client.errors import BlueprintError

ROOT = Path(__file__).parents[2]
COPY = ROOT / "docs/reference/blueprint.schema.json"
EXAMPLES = sorted([*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "flujo_worker").rglob("*.yaml")])
SHAPE = {"Y-KEY", "Y-TYPE", "Y-MISSING", "Y-UNSUPPORTED"}


def test_every_rule_is_listed_as_it_is():
    """docs/reference/validation.md."""
    page = (ROOT / "docs/reference/validation.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed == [f"| `{name}` | {rule.severity} | {rule.what} |" for name, rule in RULES.items()]


@pytest.fixture(scope="module")
def schema():
    return jsonschema_rs.Draft202012Validator(json_schema())


def test_the_committed_copy_is_what_the_code_makes():
    """`flujo validate --schema > docs/reference/blueprint.schema.json` makes it again."""
    assert json.loads(COPY.read_text()) == json_schema()


def as_editors_read(file):
    """Keys are texts there, of branches too; nothing for a text that is not YAML."""
    try:
        return json.loads(json.dumps(read(file.read_bytes()).data))
    except BlueprintError:
        return None


BROKEN = [
    each for each in sorted((ROOT / "tests/unit/client/broken_blueprints").glob("*.yaml")) if as_editors_read(each)
]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_holds(schema, file):
    assert [error.message for error in schema.iter_errors(as_editors_read(file))] == []
    assert EXAMPLES


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_what_has_the_wrong_shape_does_not_hold_and_all_else_does(schema, file, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.syspath_prepend(file.parent.parent)
    data = as_editors_read(file)
    own = [each for each in validate(file.name, allowed=("*",)).findings if each.file == file.name]
    if any(each.rule in SHAPE for each in own):
        assert not schema.is_valid(data)
    elif all(each.rule.startswith(("V-", "CTX", "HITL")) and each.rule != "V-A1" for each in own):
        assert [error.message for error in schema.iter_errors(data)] == []
