"""What `flujo validate --fix` mends, and above all what it leaves alone (requirements §2.8)."""

import json
import os
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flujo_client.blueprint.autofix import MENDED, autofix, is_slip
from flujo_client.blueprint.rules.table import Profile
from flujo_client.blueprint.validate import autofix_file, validate, validate_text
from flujo_client.cli.main import cli
from flujo_client.sizes import MAX_BLUEPRINT_BYTES
from tests.support.old_click import needs_end_of_input

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "broken_blueprints").glob("*.yaml"))
ROOT = HERE.parents[2]
SOUND = sorted([*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "flujo_worker").rglob("*.yaml")])

BROKEN = """\
# for the office
nmae: letters     # what it is called
agents:
  writer: {model: test, output_schema: {type: object, properties: {title: {type: string}}, additionalProperties: false}}

steps:
  - {name: draft, uses: agents.wirter}   # one
  - name: 42
    uses: 'broken_parts:echo'
    input: |
      this, {{ this }}: {{ steps.drfat.output.title }}
      steps.drfat   {{ 'steps.drfat' }}
  - kind: paralel
    name: three
    branches:
      a: {name: x, uses: "broken_parts:echo", input: "{{ steps.draft.title | upper }}"}
"""
SLIPS = [
    ("nmae", "name"),
    ("wirter", "writer"),
    ("name: 42", 'name: "42"'),
    ("{{ this }}", "{{ previous_step }}"),
    ("{{ steps.drfat.output", "{{ steps.draft.output"),
    ("paralel", "parallel"),
    ("steps.draft.title", "steps.draft.output.title"),
]


def found_in(text):
    return validate_text(text, allowed=("*",)).findings


def mended(text):
    return autofix(text, found_in).text


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_is_mended_is_mended_at_its_place(ends):
    """Comments, layout and the ends of lines stay; so does what only looks like it."""
    wanted = BROKEN
    for wrong, right in SLIPS:
        assert wanted.count(wrong) == 1
        wanted = wanted.replace(wrong, right)
    text = BROKEN.replace("\n", ends)
    assert mended(text) == wanted.replace("\n", ends)
    assert [each for each in found_in(wanted) if each.severity == "error"] == []


@pytest.mark.parametrize(
    "text",
    [
        # a word that is far from the known one
        "steps: [{name: a, uses: 'broken_parts:echo', sink: letter}]",
        # a key that is there already
        "name: x\nnmae: y\nsteps: [{name: a, uses: 'broken_parts:echo'}]",
        # a number is no slip of the hand, and a version is not guessed
        "version: '0.2'\nsteps: [{name: a, uses: 'broken_parts:echo'}]",
        # a word of ours, or a name, to which two are equally near
        "steps: [{name: a, uses: 'broken_parts:echo', config: {top_: 1}}]",
        "agents: {cab: {model: test}, car: {model: test}}\nsteps: [{name: a, uses: agents.caz}, {name: b, uses: agents.cab}, {name: c, uses: agents.car}]",
        # inside #each, `this` is the item
        "steps: [{name: a, uses: 'broken_parts:echo', input: '{{ this }}{{#each context.x}}{{ this }}{{/each}}'}]",
        # an alias stands for it elsewhere too
        "steps: [{name: a, uses: 'broken_parts:echo', input: &t '{{ this }}'}, {name: b, uses: 'broken_parts:echo', input: *t}]",
        # what it is of may have an `output`
        "steps: [{name: a, uses: 'broken_parts:echo'}, {name: b, uses: 'broken_parts:echo', input: '{{ previous_step.output }}'}]",
        # it is not UTF-8, not YAML
        "steps: [",
        # an escape stands where the letters would
        "steps: [{name: a, uses: 'broken_parts:echo', input: \"{{ th\\x69s }}\"}]",
    ],
)
def test_what_is_in_doubt_is_left_alone(text):
    assert found_in(text) != ()
    assert mended(text) == text


@pytest.mark.parametrize("key", ["name]", "na]me", "na[0]", "[name", "na.me"])
def test_a_key_may_look_like_a_place(key):
    text = f"steps: [{{'{key}': a, uses: 'broken_parts:echo'}}]"
    assert found_in(text) != ()
    assert mended(text) == text


def test_a_path_is_mended_in_expressions_too():
    text = """
steps:
  - {name: draft, uses: "broken_parts:echo"}
  - kind: conditional
    name: c
    condition_expression: "steps.drfat.output == 'steps.drfat'"
    branches: {true: {name: x, uses: "broken_parts:echo"}, false: {name: y, uses: "broken_parts:echo"}}
"""
    assert mended(text) == text.replace("steps.drfat.output", "steps.draft.output")


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_mending_brings_no_new_fault(file, monkeypatch):
    """Over every broken blueprint there is: what was mended is gone, comments are there, and a second time mends nothing."""
    monkeypatch.chdir(HERE / "broken_blueprints")
    data, done = autofix_file(file.name, allowed=("*",), profile=Profile())
    if not done.findings:
        return
    text = data.decode()
    left = validate_text(done.text, allowed=("*",), target=file.name, name=file.stem, folder=Path()).findings
    assert len([each for each in left if each.rule.startswith("Y-")]) <= len(
        [each for each in validate(file.name, allowed=("*",)).findings if each.rule.startswith("Y-")]
    )
    assert [line for line in done.text.splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]
    assert not {(each.rule, each.key, each.message) for each in done.findings} & {
        (each.rule, each.key, each.message) for each in left
    }


def test_a_text_is_validated_once_a_round_and_not_after_every_mending():
    """A hundred slips of independent steps take one round, and one to see that nothing is left."""
    steps = "".join(f"  - nmae: s{number}\n    uses: broken_parts:echo\n" for number in range(100))
    asked = []
    done = autofix(f"steps:\n{steps}", lambda text: asked.append(text) or found_in(text))
    assert (len(done.findings), len(asked)) == (100, 2)
    assert done.text == f"steps:\n{steps}".replace("nmae", "name")
    assert [each.line for each in done.findings] == sorted(each.line for each in done.findings)


def test_every_mending_is_made_somewhere_in_the_corpus(monkeypatch):
    """Or here, for those that no file of it shows."""
    monkeypatch.chdir(HERE / "broken_blueprints")
    made = {
        each.rule for file in CORPUS for each in autofix_file(file.name, allowed=("*",), profile=Profile())[1].findings
    }
    made |= {each.rule for each in autofix(BROKEN, found_in).findings}
    assert made == set(MENDED)


@pytest.mark.parametrize("file", SOUND, ids=lambda file: file.stem)
def test_a_sound_blueprint_is_left_alone(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert autofix_file(str(file), allowed=("*",), profile=Profile())[1].findings == ()


@pytest.mark.parametrize(
    ("given", "meant", "is_one"),
    [
        ("nmae", "name", True),
        ("nam", "name", True),
        ("names", "name", True),
        ("nane", "name", True),
        ("name", "name", False),
        ("mane_", "name", False),
        ("a1", "a2", False),
        ("sink", "sink_to", False),
        ("nam", "na", False),
    ],
)
def test_one_slip_of_the_hand(given, meant, is_one):
    assert is_slip(given, meant) is is_one


def test_what_is_mended_is_listed():
    """docs/reference/validation.md."""
    page = (ROOT / "docs/reference/validation.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("- `")] == [
        f"- `{rule}`: {what}" for rule, what in MENDED.items()
    ]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLUJO_ALLOWED_IMPORTS", "broken_parts")
    (tmp_path / "letters.yaml").write_bytes(b"\xef\xbb\xbf" + BROKEN.encode())
    return tmp_path / "letters.yaml"


def flujo(*arguments, answer=None):
    return CliRunner().invoke(cli, ["validate", "letters.yaml", *arguments], input=answer)


def test_a_dry_run_shows_and_writes_nothing(file):
    before = file.read_bytes()
    ended = flujo("--fix-dry-run")
    assert (ended.exit_code, file.read_bytes()) == (4, before)
    assert "-nmae: letters     # what it is called\n+name: letters     # what it is called\n" in ended.stdout
    assert "letters.yaml:2:1: Y-KEY" in ended.stdout


def test_it_writes_when_it_may(file):
    """The byte order mark stays, and what is told then is what is left."""
    ended = flujo("--fix", "--yes")
    assert (ended.exit_code, "7 corrections written" in ended.stderr) == (0, True)
    assert file.read_bytes() == b"\xef\xbb\xbf" + mended(BROKEN).encode()


old_click = pytest.mark.skipif(
    not hasattr(click.testing, "StreamMixer"), reason="its test runner knows no end of input"
)


@pytest.mark.parametrize(
    ("answer", "code", "is_written"),
    [("y\n", 0, True), ("n\n", 4, False), pytest.param("", 2, False, marks=needs_end_of_input)],
)
def test_it_asks(file, answer, code, is_written):
    before = file.read_bytes()
    ended = flujo("--fix", answer=answer)
    assert (ended.exit_code, file.read_bytes() != before) == (code, is_written)
    assert "write 7 corrections into letters.yaml?" in ended.stderr


def test_what_was_mended_is_data_too(file):
    told = json.loads(flujo("--fix", "--yes", "--json").stdout)
    assert (told["valid"], told["written"], len(told["mended"])) == (True, True, 7)
    assert told["diff"].startswith("--- letters.yaml")
    again = json.loads(flujo("--fix-dry-run", "--json").stdout)
    assert (again["written"], again["mended"], again["diff"]) == (False, [], "")


def test_what_a_profile_has_off_is_left_alone(file):
    (file.parent / "mine.toml").write_text('V-T2 = "off"')
    assert flujo("--fix", "--yes", "--rules", "mine.toml").exit_code == 0
    assert "{{ this }}" in file.read_text()


@pytest.mark.parametrize("options", [["--yes"], ["--fix", "--fix-dry-run"], ["--fix", "--json"]])
def test_options_that_do_not_go_together_are_refused(file, options):
    assert flujo(*options).exit_code == 2


def test_only_files_are_fixed(file):
    ended = CliRunner().invoke(cli, ["validate", "broken_parts:echo", "--fix", "--yes"])
    assert (ended.exit_code, "is not a blueprint file" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    "data",
    [
        BROKEN.replace("office", "b\u00fcro").encode("latin-1"),
        b"\xef\xbb\xbf" + BROKEN.encode() + b"#" * MAX_BLUEPRINT_BYTES,
    ],
    ids=["no UTF-8", "too large"],
)
def test_what_cannot_be_read_whole_is_left_alone(file, data):
    file.write_bytes(data)
    assert flujo("--fix", "--yes").exit_code == 4
    assert file.read_bytes() == data


def test_a_difference_has_the_lines_of_the_file(file):
    file.write_bytes(BROKEN.replace("\n", "\r\n").encode())
    told = json.loads(flujo("--fix-dry-run", "--json").stdout)
    assert "No newline" not in told["diff"]
    assert "+name: letters     # what it is called\r\n" in told["diff"]


@pytest.mark.parametrize("fault", ["fsync", "fchown"])
def test_a_file_that_cannot_be_written_whole_is_left_whole(file, monkeypatch, fault):
    """As on a full disk: it is told, and nothing is left next to the file."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, fault, refuse)
    ended = flujo("--fix", "--yes")
    assert (ended.exit_code, "No space left on device" in ended.stderr) == (1, True)
    assert (file.read_bytes(), list(file.parent.iterdir())) == (before, [file])


def test_a_link_stays_one_and_its_file_keeps_its_mode(file):
    real = file.rename(file.with_name("real.yaml"))
    real.chmod(0o640)
    file.symlink_to("real.yaml")
    assert flujo("--fix", "--yes").exit_code == 0
    assert (file.is_symlink(), stat.S_IMODE(real.stat().st_mode)) == (True, 0o640)
    assert real.read_bytes() == b"\xef\xbb\xbf" + mended(BROKEN).encode()


def test_a_file_that_was_changed_while_it_asked_is_left_as_it_is(file, monkeypatch):
    def answer(*_, **__):
        file.write_text("name: another\n")
        return True

    monkeypatch.setattr(click, "confirm", answer)
    ended = flujo("--fix")
    assert (ended.exit_code, "was changed after it was read" in ended.stderr) == (2, True)
    assert file.read_text() == "name: another\n"


@pytest.mark.parametrize("targets", [["nowhere.yaml", "letters.yaml"], ["letters.yaml", "nowhere.yaml"]])
def test_a_file_that_is_not_there_is_a_finding_and_the_others_are_mended(file, targets):
    ended = CliRunner().invoke(cli, ["validate", *targets, "--fix", "--yes", "--json"])
    told = {each["target"]: each for each in json.loads(ended.stdout)}
    assert (ended.exit_code, told["letters.yaml"]["written"], told["nowhere.yaml"]["written"]) == (3, True, False)
    assert [each["rule"] for each in told["nowhere.yaml"]["findings"]] == ["Y-FILE"]
