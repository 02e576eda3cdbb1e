"""Hard input, as a table: an answer among a hundred thousand characters or tens of thousands of candidates, unions that overlap, brackets.

The cases have the corpus' format, and a class. They are made here because their texts are long. `python -m tests.bench.aros_hard` measures
recall, wrong values and processor time of each class.
"""

import json

LONG = 100_000
MANY = 50_000
EQUAL = 20_000

MINIMAL = {"aop": "minimal"}
REPAIR = {"aop": "full", "coercion": {"tolerant_level": 2}}
ALLOW = {
    "integer": ["str->int"],
    "number": ["str->float", "str->int"],
    "boolean": ["str->bool"],
    "array": ["str->array", "T->[T]"],
    "object": ["str->object"],
}
CONVERT = {"aop": "full", "coercion": {"allow": ALLOW}}


def record(required, closed=True, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        **({"additionalProperties": False} if closed else {}),
    }


TEXT, WHOLE, REAL, YES = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TEXTS = {"type": "array", "items": TEXT}
ITEM = record("a b", a=WHOLE, b=TEXT)
ANSWER = '{"a": 1, "b": "x"}'
VALUE = {"a": 1, "b": "x"}
REFUSED = "refused"
"""For any reason."""


def strays():
    """An answer behind, before and between 100 000 characters that are no JSON."""
    before = {
        "closing brackets": "]",
        "closing braces": "}",
        "closers of both kinds": "]} ",
        "round brackets": "(",
        "quotes": '"',
        "apostrophes": "it's ",
        "backslashes": "\\",
        "commas": ", ",
        "colons": "key: ",
        "headings": "# title\n",
        "comments": "// note\n",
        "brackets in prose": "a [ b ",
        "braces in prose": "a { b ",
        "both in prose": "if [ x { y ",
        "letters": "x",
        "digits": "12 ",
        "code ticks": "`x` ",
    }
    after = before.keys() - {"commas"}  # after a value, a comma says that it continues
    for name, filler in before.items():
        text = filler * (LONG // len(filler))
        yield f"behind {name}", ITEM, MINIMAL, f"{text}\n{ANSWER}", VALUE
        if name in after:
            yield f"before {name}", ITEM, MINIMAL, f"{ANSWER}\n{text}", VALUE
            yield f"between {name}", ITEM, MINIMAL, f"{text}\n{ANSWER}\n{text}", VALUE
    for opener in ("[", "{", "[{", '{"b":'):
        text = opener * (LONG // len(opener))
        yield f"inside {opener!r} that nothing closes", ITEM, MINIMAL, f"{text}{ANSWER}", REFUSED


def regions():
    """An answer among 50 000 things that look like one."""
    others = {
        "citations": "[1] ",
        "placeholders": "{name} ",
        "other objects": '{"z": 1} ',
        "lists": "[1, 2] ",
        "empty lists": "[] ",
        "empty objects": "{} ",
        "subscripts": "x[i] ",
        "functions": "f(){} ",
        "wrong types": '{"a": "x", "b": "x"} ',
        "nested lists": "[[1]] ",
        "members too many": '{"a": 1, "b": "x", "c": 1} ',
    }
    for name, other in others.items():
        half = other * (MANY // 2)
        yield f"after {name}", ITEM, MINIMAL, f"{half}{half}\n{ANSWER}", VALUE
        yield f"among {name}", ITEM, MINIMAL, f"{half}\n{ANSWER}\n{half}", VALUE
        yield f"none among {name}", ITEM, MINIMAL, half + half, REFUSED


def equal():
    """The same answer up to 20 000 times, and once another one."""
    for count in (2, 100, 2000, EQUAL):
        for name, between in {"blanks": " ", "lines": "\n", "prose": " so: ", "rules": "\n---\n"}.items():
            text = (ANSWER + between) * count
            yield f"{count} times, with {name} between", ITEM, MINIMAL, text, VALUE
            other = '{"a": 2, "b": "x"}'
            yield f"{count} times and another one, with {name} between", ITEM, MINIMAL, text + other, "several-values"


def stray_and_cut():
    """A text that was cut, behind openers that are prose: a part is never taken for the whole."""
    for count in (1, 15, 16, 100, 2000):
        for opener in "[{":
            prose = f"a {opener} b " * count
            cut = '{"x": 1, "items": [{"a": 1, "b": "x"}'
            yield f"cut behind {count} {opener!r}", ITEM, REPAIR, prose + cut, REFUSED


def tree(depth, leaf):
    """Two alternatives that both have what is below them, at each of so many levels."""
    levels = {"0": leaf}
    for level in range(1, depth + 1):
        below = {"$ref": f"#/$defs/{level - 1}"}
        one = record("next", closed=False, next=below)
        two = record("next", closed=False, next=below, mark=WHOLE)
        levels[str(level)] = {"anyOf": [one, two]}
    return {"$defs": levels, "$ref": f"#/$defs/{depth}"}


def chain(depth, leaf, **more):
    value = leaf
    for _ in range(depth):
        value = {"next": value, **more}
    return value


def unions():
    """Alternatives that overlap through several levels."""
    for depth in (1, 2, 4, 8, 16, 32, 64):
        schema = tree(depth, WHOLE)
        yield f"fits, {depth} deep", schema, CONVERT, json.dumps(chain(depth, 7)), chain(depth, 7)
        yield f"converted, {depth} deep", schema, CONVERT, json.dumps(chain(depth, "7")), chain(depth, 7)
        yield f"wrong at the bottom, {depth} deep", schema, CONVERT, json.dumps(chain(depth, "x")), REFUSED
        marked = chain(depth, "7", extra="e")
        yield f"with members besides, {depth} deep", schema, CONVERT, json.dumps(marked), chain(depth, 7, extra="e")
    for width in (2, 10, 100):
        wide = {"type": "array", "items": {"anyOf": [record("v", v=REAL), *[record("v w", v=WHOLE, w=TEXT)] * width]}}
        rows = [{"v": "1.5"}, {"v": "2", "w": "x"}] * 50
        held = [{"v": 1.5}, {"v": 2, "w": "x"}] * 50
        yield f"{width} alike", wide, CONVERT, json.dumps(rows), held
    expression = {
        "$defs": {
            "e": {
                "anyOf": [
                    REAL,
                    record(
                        "op left right",
                        op={"enum": ["+", "-"]},
                        left={"$ref": "#/$defs/e"},
                        right={"$ref": "#/$defs/e"},
                    ),
                    record("op of", op={"const": "not"}, of={"$ref": "#/$defs/e"}),
                    {"type": "array", "items": {"$ref": "#/$defs/e"}},
                ]
            }
        },
        "$ref": "#/$defs/e",
    }

    def nested(depth, leaf):
        return leaf if not depth else {"op": "+", "left": nested(depth - 1, leaf), "right": {"op": "not", "of": leaf}}

    for depth in (1, 4, 16, 64):
        yield f"an expression, {depth} deep", expression, CONVERT, json.dumps(nested(depth, "1")), nested(depth, 1)
        yield f"a wrong one, {depth} deep", expression, CONVERT, json.dumps(nested(depth, "one")), REFUSED


ORDER = record(
    "id lines",
    id=WHOLE,
    lines={"type": "array", "items": record("sku", sku=TEXT, n=WHOLE, tags=TEXTS)},
    tags=TEXTS,
    note=TEXT,
)
BOX = record("x", closed=False, x=record("p", closed=False, p=WHOLE, y=WHOLE), y=WHOLE)
SHUT = record("x y", x=record("p", p=WHOLE), y=WHOLE)


def fenced(text):
    return f"```json\n{text}\n```"


def closers():
    """A closing bracket too few, too many, or of the wrong kind."""
    one, two = {"sku": "s"}, {"sku": "s", "tags": ["t"]}
    rows = [
        ('{"id": 1, "lines": [{"sku": "s", "tags": ["t"}]}', {"id": 1, "lines": [two]}),
        ('{"id": 1, "lines": [{"sku": "s", "tags": ["t"]]}', {"id": 1, "lines": [two]}),
        ('{"id": 1, "lines": [{"sku": "s"}, {"sku": "s"], "note": "n"}', {"id": 1, "lines": [one, one], "note": "n"}),
        ('{"id": 1, "lines": [{"sku": "s"}, {"sku": "s"}, "note": "n"}', {"id": 1, "lines": [one, one], "note": "n"}),
        (
            '{"id": 1, "lines": [{"sku": "s"}], "tags": ["t", "note": "n"}',
            {"id": 1, "lines": [one], "tags": ["t"], "note": "n"},
        ),
        ('{"id": 1, "lines": [{"sku": "s"}}, "note": "n"}', {"id": 1, "lines": [one], "note": "n"}),
        ('{"id": 1, "lines": [{"sku": "s"]], "note": "n"}', {"id": 1, "lines": [one], "note": "n"}),
        ('{"id": 1, "lines": []}}', {"id": 1, "lines": []}),
        ('{"id": 1, "lines": []]}', {"id": 1, "lines": []}),
        ('{"id": 1, "lines": [{"sku": "s"}}]}', {"id": 1, "lines": [one]}),
        ('{"id": 1, "lines": [{"sku": "s"}]]}', {"id": 1, "lines": [one]}),
        ('{"id": 1, "lines": [{"sku": "s"}]}]', {"id": 1, "lines": [one]}),
        ('{"id": 1}, "lines": []}', {"id": 1, "lines": []}),
        (
            '{"id": 1, "lines": [{"sku": "s"}], "tags": ["t"], "note": "n"]',
            {"id": 1, "lines": [one], "tags": ["t"], "note": "n"},
        ),
        ('{"id": 1, "lines": [{"sku": "s"}, {"sku": "s"}}', {"id": 1, "lines": [one, one]}),
    ]
    for text, value in rows:
        yield f"one reading of {text}", ORDER, REPAIR, text, value
        yield f"one reading of {text}, fenced", ORDER, REPAIR, fenced(text), value
    for text, value in (
        ('{"x": {"p": 1, "y": 2}', {"x": {"p": 1}, "y": 2}),
        ('{"x": {"p": 1], "y": 2}', {"x": {"p": 1}, "y": 2}),
        ('{"x": {"p": 1}}, "y": 2}', {"x": {"p": 1}, "y": 2}),
    ):
        yield f"only one fits: {text}", SHUT, REPAIR, fenced(text), value
    ambiguous = [
        (BOX, '{"x": {"p": 1, "y": 2}'),
        (BOX, '{"x": {"p": 1, "z": 2, "y": 3}'),
        ({"type": "array"}, "[[1, 2, 3]"),
        ({"type": "array"}, "[1, [2, 3, 4]"),
        ({"type": "object"}, '{"a": {"b": {"c": 1, "d": 2}}'),
        ({"type": "object"}, '{"a": [1, [2, 3, 4]}'),
        ({"type": "array", "items": {"type": "array"}}, "[[1, 2], [3, [4, 5]]"),
    ]
    for schema, text in ambiguous:
        yield f"two readings of {text}", schema, REPAIR, fenced(text), REFUSED
    for count in (10, 140):
        yield (
            f"one of {count} missing",
            {"type": "object"},
            REPAIR,
            fenced('{"a": {"b": 1, "c": ' * count + "1" + "}" * (2 * count - 1)),
            REFUSED,
        )


def tags():
    """A member names the alternative: no other one is converted to."""
    texts = [
        ({"kind": {"const": 1}, "v": WHOLE}, {"kind": {"const": "1"}, "v": YES}),
        ({"kind": {"const": "1"}, "v": YES}, {"kind": {"const": 1}, "v": WHOLE}),
        ({"kind": {"enum": [1, 2]}, "v": WHOLE}, {"kind": {"enum": ["1", "2"]}, "v": YES}),
        ({"kind": {"const": True}, "v": REAL}, {"kind": {"const": "true"}, "v": YES}),
    ]
    for keyword in ("anyOf", "oneOf"):
        for one, two in texts:
            schema = {keyword: [record("kind v", **one), record("kind v", **two)]}
            for alternative in (one, two):
                kind = alternative["kind"].get("const", alternative["kind"].get("enum", [None])[0])
                v = {"integer": 1, "boolean": True, "number": 1}[alternative["v"]["type"]]
                name = f"{keyword} by {json.dumps(kind)} of {json.dumps(one['kind'])}"
                yield name, schema, CONVERT, json.dumps({"kind": kind, "v": "1"}), {"kind": kind, "v": v}
    shapes = {
        "oneOf": [
            record("type r", type={"const": "circle"}, r=REAL),
            record("type w", type={"const": "square"}, w=REAL),
            record("type w", type={"const": "rod"}, w=WHOLE),
        ],
        "discriminator": {"propertyName": "type"},
    }
    for given, held in (
        ({"type": "circle", "r": "2.5"}, {"type": "circle", "r": 2.5}),
        ({"type": "square", "w": "2"}, {"type": "square", "w": 2}),
        ({"type": "rod", "w": "2"}, {"type": "rod", "w": 2}),
        ({"type": "rod", "w": "2.5"}, REFUSED),
        ({"type": "circle", "w": "2"}, REFUSED),
        ({"type": "blob", "w": "2"}, REFUSED),
        ({"type": "Circle", "r": "2"}, REFUSED),
    ):
        yield f"a shape: {json.dumps(given)}", shapes, CONVERT, json.dumps(given), held
    both = {"anyOf": [record("kind v", kind={"const": 1}, v=WHOLE), record("kind v", kind={"const": "1"}, v=YES)]}
    yield "a tag whose alternative does not fit", both, CONVERT, '{"kind": "1", "v": "7"}', REFUSED
    yield (
        "a list of tagged",
        {"type": "array", "items": both},
        CONVERT,
        '[{"kind": "1", "v": "1"}, {"kind": 1, "v": "1"}]',
        [
            {"kind": "1", "v": True},
            {"kind": 1, "v": 1},
        ],
    )


CLASSES = {
    "strays": strays,
    "regions": regions,
    "equal": equal,
    "cut behind strays": stray_and_cut,
    "unions": unions,
    "closing brackets": closers,
    "tags": tags,
}


def cases():
    """Give every case; `schema` and `settings` as they are."""
    for name, rows in CLASSES.items():
        for number, (why, schema, settings, raw, want) in enumerate(rows(), 1):
            expected = {"refuse": None if want == REFUSED else want, "pointer": None}
            yield {
                "id": f"hard-{name.replace(' ', '-')}-{number:03}",
                "class": name,
                "why": why,
                "schema": schema,
                "settings": settings,
                "raw": raw,
                **(expected if isinstance(want, str) else {"value": want}),
            }
