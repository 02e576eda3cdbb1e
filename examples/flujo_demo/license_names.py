"""Licences by their names: SPDX expressions, the names people use, and the words of licence texts. Pure.

Must not guess: what is not recognised is left out, or `unknown`. In: texts. Out: SPDX identifiers with the words they were recognised
by, and categories.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

Category = Literal["permissive", "copyleft", "proprietary", "unknown"]


class LicenceName(NamedTuple):
    """A licence as it was recognised, and the words it was recognised by."""

    spdx: str
    quote: str


# --- SPDX ----------------------------------------------------------------------------------------------------------

_PERMISSIVE = """
    0BSD AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause BSL-1.0 CC0-1.0 CC-BY-4.0
    CNRI-Python curl HPND ISC LicenseRef-BSD LicenseRef-Public-Domain MIT MIT-0 MIT-CMU NCSA OpenSSL PostgreSQL PSF-2.0
    Python-2.0 Python-2.0.1 Unlicense UPL-1.0 WTFPL X11 Zlib ZPL-2.1
""".split()  # noqa: SIM905 - a table of words
_PERMISSIVE_BY_LOWER = {name.lower(): name for name in _PERMISSIVE}
_COPYLEFT = re.compile(r"(?i)([AL]?GPL|MPL|EPL|EUPL|CDDL|OSL|CECILL|CC-BY-SA)(-|$)")
# A family of licences, without the version or the clauses that distinguish them.
_VAGUE = re.compile(r"(?<![\w-])(LicenseRef-BSD|[AL]?GPL)(?![\w-])")
_PROPRIETARY = re.compile(r"(?i)LicenseRef-Proprietary|(BUSL|SSPL|Elastic|PolyForm|CC-BY-NC)-")

# If both licences apply, the stricter counts; if there is a choice, the freer.
_STRICTER: tuple[Category, ...] = ("permissive", "unknown", "copyleft", "proprietary")
_FREER: tuple[Category, ...] = ("permissive", "copyleft", "proprietary", "unknown")


def _category_of_one(identifier: str) -> Category:
    if identifier.removesuffix("+").lower() in _PERMISSIVE_BY_LOWER:
        return "permissive"
    if _COPYLEFT.match(identifier):
        return "copyleft"
    return "proprietary" if _PROPRIETARY.match(identifier) else "unknown"


def category_of(expression: str) -> Category:
    """Read the category of an SPDX expression; `unknown` for what is none."""
    tokens = re.findall(r"[()]|[^\s()]+", expression)
    try:
        category = _either(tokens)
    except (IndexError, RecursionError):
        return "unknown"
    return "unknown" if tokens else category


def spelled(expression: str) -> str:
    """Write an SPDX expression's well-known identifiers as SPDX writes them."""
    return " ".join(_PERMISSIVE_BY_LOWER.get(part.lower(), part) for part in expression.split())


def is_vague(expression: str) -> bool:
    """Return whether an SPDX expression names a family of licences, and leaves open which one it is."""
    return bool(_VAGUE.search(expression))


def _either(tokens: list[str]) -> Category:
    return _joined(tokens, "OR", _both, lambda one, two: min(one, two, key=_FREER.index))


def _both(tokens: list[str]) -> Category:
    return _joined(tokens, "AND", _single, lambda one, two: max(one, two, key=_STRICTER.index))


def _joined(
    tokens: list[str],
    word: str,
    part: Callable[[list[str]], Category],
    join: Callable[[Category, Category], Category],
) -> Category:
    category = part(tokens)
    while tokens and tokens[0].upper() == word:
        tokens.pop(0)
        category = join(category, part(tokens))
    return category


def _single(tokens: list[str]) -> Category:
    first = tokens.pop(0)
    if first == "(":
        category = _either(tokens)
        return category if tokens.pop(0) == ")" else "unknown"
    if tokens and tokens[0].upper() == "WITH":
        del tokens[:2]
    return _category_of_one(first)


# --- names people use ----------------------------------------------------------------------------------------------

_GNU = re.compile(
    r"(?i)\b(?P<kind>(GNU )?Affero( General Public Licen[cs]e)?|(GNU )?(Library or )?Lesser( General Public Licen[cs]e)?|"
    r"(GNU )?General Public Licen[cs]e|[AL]?GPL)\W{0,3}(Version|v)?\s*(?P<version>\d(\.\d)?)?(?P<later>\+| or (any )?later)?"
)
_NAMES = tuple(
    (spdx, re.compile(pattern, re.IGNORECASE))
    for spdx, pattern in {
        "LicenseRef-Proprietary": r"\bproprietary|non-?commercial use|free to use but restricted",
        "MIT-0": r"MIT No Attribution|\bMIT-0\b",
        "MIT": r"\bMIT\b(?!-0| No Attr)|\bExpat\b",
        "BSD-3-Clause": r"\b(New|Revised|Modified|3-Clause) BSD|\bBSD[ -]3|\bBSD \(3",
        "BSD-2-Clause": r"\b(Simplified|FreeBSD|2-Clause) BSD|\bBSD[ -]2|\bBSD \(2",
        "LicenseRef-BSD": r"\bBSD(?! ?-?[0-9]| \([0-9])",
        "Apache-2.0": r"\bApache( Software)?( Licen[cs]e)?[-,( ]*(Version |v)?2(\.0)?|\bApache( Software)? Licen[cs]e(?!.*1\.[01])|\bApache$",
        "PSF-2.0": r"\bPython Software Foundation|\bPSF\b",
        "ISC": r"\bISC\b",
        "MPL-2.0": r"\bMozilla Public Licen[cs]e,? ?(Version |v)?2\.0|\bMPL[- ]?(v?\.?)?2",
        "MPL-1.1": r"\bMozilla Public Licen[cs]e,? ?(Version |v)?1\.1|\bMPL[- ]?1\.1",
        "EPL-2.0": r"\bEclipse Public Licen[cs]e,? ?(Version |v)?2\.0",
        "EUPL-1.2": r"\bEuropean Union Public Licen[cs]e,? ?1\.2",
        "CC0-1.0": r"\bCC0\b",
        "Unlicense": r"\bUnlicense\b",
        "Zlib": r"\bzlib\b",
        "HPND": r"\bHistorical Permission Notice|\bHPND\b",
        "BSL-1.0": r"\bBoost Software Licen[cs]e",
        "ZPL-2.1": r"\bZope Public Licen[cs]e",
        "LicenseRef-Public-Domain": r"\bPublic Domain$",
    }.items()
)
_CHOICE = re.compile(r"(?i)\bdual\b|\beither\b|\bor\b(?! (any )?(later|lesser))|/")


def offers_choice(text: str) -> bool:
    """Return whether a short text offers a choice between licences."""
    return bool(_CHOICE.search(text))


def named(text: str) -> list[LicenceName]:
    """Recognise the licences a short text or a classifier names."""
    found = [LicenceName(spdx, match.group()) for spdx, pattern in _NAMES if (match := pattern.search(text))]
    if gnu := _GNU.search(text):
        found.append(LicenceName(_gnu_identifier(gnu), gnu.group()))
    precise = {name.spdx for name in found}
    return [
        name for name in found if not (name.spdx == "LicenseRef-BSD" and precise & {"BSD-2-Clause", "BSD-3-Clause"})
    ]


def _gnu_identifier(match: re.Match[str]) -> str:
    kind, version = match["kind"].upper(), match["version"]
    family = "AGPL" if "AFFERO" in kind or kind == "AGPL" else "LGPL" if "LESSER" in kind or kind == "LGPL" else "GPL"
    if not version:
        return family
    return f"{family}-{version if '.' in version else version + '.0'}-{'or-later' if match['later'] else 'only'}"


# --- licence texts -------------------------------------------------------------------------------------------------

_TEXTS = tuple(
    (spdx, re.compile(re.escape(phrase).replace(r"\ ", r"\s+"), re.IGNORECASE))
    for spdx, phrase in (
        ("MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"),
        ("LicenseRef-BSD", "Redistribution and use in source and binary forms, with or without modification"),
        ("LicenseRef-BSD", "Redistribution and use in source and binary forms of the software"),
        ("Apache-2.0", "Apache License Version 2.0"),
        ("Apache-2.0", "Apache License, Version 2.0"),
        ("ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"),
        ("ISC", "Permission to use, copy, modify, and distribute this software for any purpose"),
        ("HPND", "Permission to use, copy, modify, and distribute this software and its documentation"),
        ("PSF-2.0", "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2"),
        ("MPL-2.0", "Mozilla Public License Version 2.0"),
        ("MPL-2.0", "Mozilla Public License, v. 2.0"),
        ("MPL-2.0", "Mozilla Public License, version 2.0"),
        ("Unlicense", "This is free and unencumbered software released into the public domain"),
        ("Zlib", "Altered source versions must be plainly marked as such"),
        ("LicenseRef-Proprietary", "proprietary and confidential"),
        ("LicenseRef-Proprietary", "may not be copied, distributed"),
        ("LicenseRef-Proprietary", "subject to the terms of the End User License Agreement"),
    )
)
_THIRD_CLAUSE = re.compile(r"(?i)endorse\s+or\s+promote")
# Only the disclaimer after the clauses proves that there is no third one: the text may be cut before it.
_DISCLAIMER = re.compile(r"(?i)is\s+provided\s+by")
# A title, for many licences mention the GNU ones further down.
_GNU_TITLE = re.compile(
    r"(?is)\A.{0,200}?(?P<quote>GNU\s+((?P<kind>AFFERO|LESSER|LIBRARY)\s+)?GENERAL\s+PUBLIC\s+LICENSE"
    r"(\s+Version\s+(?P<version>\d(\.\d)?))?)"
)
_GNU_FAMILY = {"AFFERO": "AGPL", "LESSER": "LGPL", "LIBRARY": "LGPL"}


def in_text(text: str) -> list[LicenceName]:
    """Recognise a licence by the words of its text."""
    if gnu := _GNU_TITLE.match(text):
        family, version = _GNU_FAMILY.get((gnu["kind"] or "").upper(), "GPL"), gnu["version"]
        return [
            LicenceName(
                f"{family}-{version if '.' in version else version + '.0'}" if version else family, gnu["quote"]
            )
        ]
    found = {spdx: match.group() for spdx, pattern in _TEXTS if (match := pattern.search(text))}
    if _THIRD_CLAUSE.search(text) and "LicenseRef-BSD" in found:
        found["BSD-3-Clause"] = found.pop("LicenseRef-BSD")
    if _DISCLAIMER.search(text) and "LicenseRef-BSD" in found:
        found["BSD-2-Clause"] = found.pop("LicenseRef-BSD")
    return [LicenceName(spdx, quote) for spdx, quote in found.items()]
