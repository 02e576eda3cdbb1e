"""The grammar of each level: the patterns of words, numbers, blanks and closing quotes.

Level 0 is strict JSON with the slips of Stage 2; level 1 adds what the JSON5 grammar accepts; level 2 adds what models write beyond that.
Every pattern is linear: no two parts of one can match the same blanks or letters.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

import re
from typing import Final

from flujo_client.patterns import compiled

REPAIR: Final = 2
"""The level that reads what models write beyond JSON5."""
BLANK: Final = " \t\n\r"
_WIDE = BLANK + "\v\f\u00a0\ufeff\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_COMMENTS = r"//[^\n\r\u2028\u2029]*+|/\*(?:[^*]|\*(?!/))*+\*/"

SKIP: Final = (
    compiled(rf"[{BLANK}]*+"),
    compiled(rf"(?:[{_WIDE}]++|{_COMMENTS})*+"),
    compiled(rf"(?:[{_WIDE}]++|{_COMMENTS}|\#[^\n]*+)*+"),
)

_END = r"(?=[\s,\]})#]|/[/*]|\Z)"
STRICT_NUMBER: Final = compiled(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?", re.ASCII)
_NUMBER5 = compiled(
    r"[+-]?(?:0[xX][0-9a-fA-F]++|(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)" + _END
)
NUMBER: Final = (compiled(STRICT_NUMBER.pattern + _END), _NUMBER5, _NUMBER5)
WHOLE: Final = compiled(r"[+-]?[0-9]++")

WORD: Final = compiled(r"[A-Za-z]++" + _END)
WORDS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_NOTHING: Final = r"[+.$@-]*(?:\w+::)?(?:true|false|null|nil|none|nan|nat|n[/.]?a|inf|infinity|undefined|undef|nullptr|void(?: 0)?|nill|nullopt|ellipsis|notimplemented|(?-i:Nothing))(?:\.|::\w+| \?\? .*)?"
_LEFT_OUT: Final = r"(?:\w+ )?(?:omitted|truncated|elided|snip|snipped)|and (?:so on|more|others)|ditto|(?:same |see )?(?:as )?above|(?:and )?\d+ more(?: \w+)?"
_NUMBER: Final = r"[+-]?\d++(?:_\d++)+(?:\.\d+)?|0o[0-7_]+|0b[01_]+|(?-i:[+-]?\d+(?:n|[uU]?LL?|[uU]))|[+-]?\d*\.\d+f|[+-]?\d+(?:\.\d*)?j"
_REGEX: Final = r"/\S+/[dgimsuvy]{1,8}"
NO_TEXT: Final = compiled(
    rf"{_NOTHING}|{_LEFT_OUT}|etc\.?|&c\.?|{_NUMBER}|{_REGEX}|<.*|_+|[a-z]{{1,2}}\d?([\"'`]).*\1|\W*",
    re.IGNORECASE | re.DOTALL,
)
"""Words without quotes that are no text: values that JSON cannot express, literals of other languages, and marks of something left out."""
ELISION: Final = compiled(r"\.\.\.|…|\b(?:omitted|truncated|elided|snip|snipped|and so on|left out)\b", re.IGNORECASE)
"""What in a comment says that something is missing."""

_NAME5 = r"[^\W\d][\w$]*+|\$[\w$]*+"
KEY: Final = (None, compiled(_NAME5), compiled(r"[\w$][\w$.-]*+"))

LOOSE: Final = compiled(r"[\w$€£+.@&!?~^/-](?:[\w$€£+.@&!?~^%/-]|:(?!\s)|[ \t]+(?=[\w$€£+.@&!?~^%(/-])(?!//))*+")
"""A value without quotes, up to what ends it: no quotes, brackets, backslashes, or colon before a blank."""

QUOTES: Final = (
    {'"': '"'},
    {'"': '"', "'": "'"},
    {'"': '"', "'": "'", "“": '”“"', "”": '”“"', "„": '”“"', "‘": "’‘'", "’": "’‘'"},
)
"""For each level, what opens a string and what may close it."""
TRIPLE: Final = ('"""', "'''")
CLOSERS: Final = ({"{": "}", "[": "]"}, {"{": "}", "[": "]"}, {"{": "}", "[": "]", "(": ")"})

_A_QUOTE = "[\"'“”„‘’]"
_A_KEY = rf"(?:{_A_QUOTE}[^\"'“”„‘’\n]{{0,200}}+{_A_QUOTE}|[\w$][\w$.-]{{0,200}}+)\s*+:"
CLOSES: Final = r"(?:}(?![\"'\w(])|[\])](?![\"'\w(\[+$=]|\.\w|\*(?!\*)))"
"""A closer of the text, not of the program that a string quotes: no `d["key"]"`, no `print("x")"`, no `[^"]+`."""
ENDS_KEY: Final = compiled(r"\s*+:")
ENDS_MEMBER: Final = compiled(rf"\s*+(?:(?!\)){CLOSES}|\Z|/[/*]|,\s*+(?:}}|\Z|/[/*]|\#|{_A_KEY})|\s\#)|\s++{_A_KEY}")
_ELEMENT = rf"\Z|/[/*]|,\s*+(?:[\])\[{{(\d+.…-]|\Z|/[/*]|\#|{_A_QUOTE}|true|false|null|True|False|None|\w+\s*[,\]]))|\s++(?:{_A_QUOTE}|[\[{{])"
ENDS_ELEMENT: Final = compiled(rf"\s*+(?:(?!\)){CLOSES}|{_ELEMENT}")
ENDS_IN_TUPLE: Final = compiled(rf"\s*+(?:{CLOSES}|{_ELEMENT}")
"""At level 2 a quote closes a string only before one of these; any other quote belongs to the text."""

QUOTE_COMMA: Final = compiled(r"[\"'”’]\s*+,|,\s*+[\"'“‘]")
SUM: Final = compiled(r"[\"'”’]\s*+\+\s*+[\"'“‘]")
MEMBER: Final = compiled(r"[\"'”’]\s*+:\s*+[\"'“‘]")
CONTROL: Final = compiled(r"[\x00-\x1f]")

PLAIN_BODY: Final = {
    '"': compiled(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL),
    "'": compiled(r"[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL),
}
