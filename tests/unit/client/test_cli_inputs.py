"""Input and context from the command line (U-25, §2.8)."""

import json

import click
import pytest
from click.testing import CliRunner

from flujo_client.cli.inputs import input_options, json_option, one_value
from flujo_client.cli.output import show_json


@click.command
@input_options
def echo(*, value, context):
    show_json([value, context])


@click.command
@click.argument("value")
@json_option("The answer")
def say(*, value, json_text):
    """As a command does that takes a value as its argument."""
    show_json(one_value(value, json_text))


def given(*arguments, **rest):
    told = CliRunner().invoke(echo, arguments, **rest)
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    ("arguments", "environment", "piped", "value"),
    [
        (["-i", "flag"], "environment", "piped", "flag"),
        ([], "environment", "piped", "environment"),
        ([], None, "piped", "piped"),
        ([], None, "", ""),
        (["-i", "-"], "environment", "piped", "piped"),
        (["--input", ""], None, "piped", ""),
    ],
    ids=["flag", "environment", "piped", "nothing", "dash", "empty flag"],
)
def test_the_input_comes_from_the_first_that_gives_one(arguments, environment, piped, value):
    """The order is: flag, FLUJO_INPUT, piped stdin, empty (U-25)."""
    assert given(*arguments, env={"FLUJO_INPUT": environment}, input=piped)[0] == value


@pytest.mark.parametrize("text", ["42", "true", '{"a": 1}', "[1]", "null", '"x"', " spaced "])
def test_input_is_text_whatever_it_looks_like(text):
    """Someone's text does not become a number because it looks like one (U-25)."""
    assert given("-i", text)[0] == text


@pytest.mark.parametrize("text", ["42", "true", '{"a": 1}', "[1]", "null", '"x"'])
def test_input_is_json_when_it_is_said_to_be(text):
    """`--input-json` takes any JSON value, from stdin too, and goes over FLUJO_INPUT (U-25)."""
    assert given("-j", "-", input=text)[0] == json.loads(text)
    assert given("-j", text, env={"FLUJO_INPUT": "environment"}, input="piped")[0] == json.loads(text)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["42"], "42"), (["-"], '{"a": 1}'), (["x", "-j", "42"], 42), (["x", "-j", "-"], {"a": 1})],
)
def test_every_value_is_given_in_the_same_ways(arguments, value):
    """Where no flag takes it, too, as of `flujo approvals answer`: text, JSON, and `-` for stdin."""
    assert json.loads(CliRunner().invoke(say, arguments, input='{"a": 1}\n').stdout) == value


@pytest.mark.parametrize(("piped", "value"), [("a\n", "a"), ("a\nb\n\n", "a\nb\n"), ("grüße", "grüße")])
def test_one_newline_at_the_end_of_what_is_piped_is_not_input(piped, value):
    """`echo text | flujo run` gives the text, as a shell's `$(…)` would (U-25)."""
    assert given(input=piped)[0] == value


def test_context_data_goes_over_the_context_file(tmp_path):
    """`-f` gives a context, `-d` changes it (§2.8)."""
    file = tmp_path / "context.json"
    file.write_text('{"topic": "bees", "depth": 1}')
    assert given("-f", str(file), "-d", '{"depth": 2}')[1] == {"topic": "bees", "depth": 2}


def test_no_context_is_none():
    """A run without context data has no context (M-023)."""
    assert given("-i", "x")[1] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-j", "{bad"], "Invalid value for --input-json: is not JSON"),
        (["-j", ""], "Invalid value for --input-json: is not JSON"),
        (["-i", "text", "-j", "1"], "--input and --input-json are alternatives"),
        (["-i", "text", "-j"], "requires an argument"),
        (["-d", "{bad"], "Invalid value for --context-data: is not JSON"),
        (["-d", "[1]"], "Invalid value for --context-data: must be a JSON object"),
        (["-f", "no/such/file"], "No such file"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments, said):
    """The option is named, and what it should hold (U-42)."""
    told = CliRunner().invoke(echo, arguments)
    assert (told.exit_code, said in told.stderr) == (2, True)


def test_piped_bytes_that_are_no_text_are_refused():
    """Input travels as text; anything else is refused, not mangled (U-42)."""
    told = CliRunner().invoke(echo, input=b"\xff\xfe")
    assert (told.exit_code, "stdin is not UTF-8 text" in told.stderr) == (2, True)
