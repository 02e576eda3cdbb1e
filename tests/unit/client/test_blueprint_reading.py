"""YAML to data with places: what is taken, what is refused, and that no text takes long or makes much of itself."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.blueprint.finding import Mark
from flujo_client.blueprint.read import dump, read
from flujo_client.errors import BlueprintError
from flujo_client.sizes import MAX_BLUEPRINT_BYTES
from tests.support.breadth import large

WORDS = [
    *("on", "yes", "1e5", "0o17", "0x1f", "1_000", "null", "~", "", "<<", "2001-01-01", "=", "true", "- a", "a: b"),
    *(
        "#",
        "!x",
        "&a",
        "*a",
        "|",
        "\ta",
        "a\n b\n",
        "\n a",
        "  a\n",
        "a\n\n",
        "a \n",
        "1:30",
        ".5",
        "5.",
        ".inf",
        "...",
    ),
    *("---", "a\u2028b", "\ufeffa", "a\x85b", "{{ x }}\nb", "\x00", "%", "@a", "`a"),
]
texts = st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
documents = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


def refusal(text):
    with pytest.raises(BlueprintError) as refused:
        read(text)
    return refused.value


def is_read_or_refused(text):
    try:
        read(text)
    except BlueprintError as error:
        return bool(error.findings)
    return True


@given(documents)
def test_what_is_written_is_read_again(document):
    """Types too: `repr` tells 1 from true and from 1.0."""
    assert repr(read(dump(document)).data) == repr(document)


def test_plain_words_are_those_of_yaml_1_2():
    """§2.6: a transition's `on` is a key like any other."""
    assert read("on: yes\noff: 1_0\nt: 2001-01-01\nn: 0x10").data == {
        "on": "yes",
        "off": "1_0",
        "t": "2001-01-01",
        "n": 16,
    }


def test_every_value_has_its_place():
    source = read("a: 1\nb:\n  - x\n  - {c: d}\n")
    assert source.marks["b", 1, "c"] == Mark(4, 6)
    assert str(source.finding("Y", ("b", 1, "c", "e"), "is wrong")) == "<text>:4:6: Y: b[1].c.e: is wrong"


def test_anchors_and_merge_keys_repeat_values():
    text = "base: &base {x: 1, y: 2}\nown: {<<: *base, y: 3}\nboth: {<<: [{x: 5}, *base]}"
    assert read(text).data == {"base": {"x": 1, "y": 2}, "own": {"x": 1, "y": 3}, "both": {"x": 5, "y": 2}}


def test_everything_wrong_is_told_at_once():
    error = refusal("a: 1\na: 2\nb: !!python/object:os.system x\n")
    assert [(each.rule, each.key, each.line, each.column) for each in error.findings] == [
        ("Y-DUPLICATE", "a", 2, 1),
        ("Y-TAG", "b", 3, 4),
    ]
    assert "first in line 1" in str(error)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n\tb: 1", "2:1: Y-SYNTAX: this is not YAML.*a tab cannot indent"),
        (b"steps: \xe9", "1:8: Y-SYNTAX: this is not UTF-8"),
        ("steps: []".encode("utf-16"), "not UTF-8"),
        ("x" * (MAX_BLUEPRINT_BYTES + 1), "at most 1,048,576 are allowed"),
        (b"x" * (MAX_BLUEPRINT_BYTES + 1), "are allowed"),
        ("", "it is empty"),
        ("# nothing", "it is empty"),
        ("a: 1\n---\nb: 2", "2:1: Y-SYNTAX: a blueprint is one document"),
        ("a: b: c", "1:5: Y-SYNTAX: this is not YAML: .*needs quotes"),
        ("? [a]\n: 1", "1:3: Y-SYNTAX: a key must be a text"),
        ("null: 1", "is not a text or a whole number"),
        ("1.5: 1", "is not a text or a whole number"),
        ("true: 1\n1: 2", "2:1: Y-DUPLICATE: .1.: is used twice"),
        ("a: " + "9" * 5000, "too large a number"),
        ("a: 0x" + "f" * 9000, "too large a number"),
        ("a: 1e999", "too large a number"),
        ("a: \x00", "1:4: Y-SYNTAX: this is not YAML: the control character U\\+0000"),
        (b"a: b\nc: '\x7f'", "2:5: Y-SYNTAX: this is not YAML: the control character U\\+007F"),
        ("a: b\nc: \ud800", "2:4: Y-SYNTAX: this is half of a surrogate pair"),
        ('a: "\\ud800"', "this is not YAML"),
        ("<<: 3", "must name mappings"),
        ("a: &a [*a]", "is inside the value that it names"),
        ("a: *b", "no anchor '&b'"),
        ("a: !!binary aGk=", "tag '!!binary' is not known"),
        ("a: !env SECRET", "tag '!env' is not known"),
        ("[" * 100_000, "lists and mappings in each other"),
        ("a: {" * 100_000, "lists and mappings in each other"),
        ("- " * 100_000, "lists and mappings in each other"),
        large(BOMB, "values, those that aliases repeat counted each time"),
        large(MERGES, "values, those that aliases repeat counted each time"),
        large("a: [" + "1," * 60_000 + "]", "more than 50,000 values"),
        large("\n".join(f"k{n}: 1" for n in range(60_000)), "more than 50,000 values"),
    ],
    ids=range(32),
)
def test_what_is_refused(text, said):
    """SYS-30: in bounded time, whatever it is."""
    begun = time.process_time()
    with pytest.raises(BlueprintError, match=f"(?s){said}"):
        read(text)
    assert time.process_time() - begun < 30


@given(st.text() | st.binary())
def test_no_text_raises_anything_else(text):
    assert is_read_or_refused(text)


@given(
    st.lists(
        st.sampled_from(
            [
                "- ",
                "? ",
                ": ",
                "{",
                "}",
                "[",
                "]",
                "&a ",
                "*a ",
                "<<: ",
                "'",
                '"',
                "|\n",
                "\n",
                " ",
                "x",
                "!!str ",
                "#",
                ",",
            ]
        ),
        max_size=40,
    )
)
def test_no_scraps_of_yaml_raise_anything_else(scraps):
    assert is_read_or_refused("".join(scraps))
