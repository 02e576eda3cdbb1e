"""The truth about an installed distribution's licence, derived from its metadata: what an agent's answer is held against.

Must not guess: where the metadata says nothing that is understood, the verdict is `unknown`; and whatever a verdict
claims is backed by a quote that stands in the metadata. In: a distribution's name, or its metadata as a value. Out:
values. Only `read_metadata` and `installed_distributions` look at what is installed; the rest is pure.
"""

from __future__ import annotations

import difflib
import re
from importlib import metadata as installed
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field

from flujo_client.errors import NonRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FIELD_CHARS = 4000
FILE_CHARS = 3000
MAX_FILES = 8
NOTHING = "NOASSERTION"
_SHORT_CHARS = 120
_QUOTE_CHARS = 200

Category = Literal["permissive", "copyleft", "proprietary", "unknown"]


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LicenseFile(_Value):
    """The beginning of a licence file; `name` is its path below the place where the distribution keeps them."""

    name: str
    text: str


class DistributionMetadata(_Value):
    """What one installed distribution says about itself; its name is normalised, and texts are cut to their beginnings."""

    name: str
    version: str
    summary: str = ""
    license_expression: str = ""
    license_text: str = ""
    classifiers: tuple[str, ...] = ()
    license_files: tuple[LicenseFile, ...] = ()


class LicenseVerdict(_Value):
    """A licence and its kind. `evidence` is a quote from the metadata, empty only for `unknown`."""

    spdx: str
    category: Category
    confidence: Annotated[float, Field(ge=0, le=1)]
    evidence: str


class _Name(NamedTuple):
    """A licence as it was recognised, and the words it was recognised by."""

    spdx: str
    quote: str


def installed_distributions() -> list[str]:
    """List the normalised names of everything installed, each once, sorted."""
    return sorted({canonicalize_name(found.name) for found in installed.distributions() if found.name})


def read_metadata(name: str) -> DistributionMetadata:
    """Read what an installed distribution says. Raises NonRetryableError if there is none of that name."""
    try:
        found = installed.distribution(name)
    except (installed.PackageNotFoundError, ValueError):
        near = difflib.get_close_matches(canonicalize_name(name), installed_distributions(), n=1)
        hint = f"did you mean {near[0]}?" if near else None
        raise NonRetryableError(f"no distribution named {name!r} is installed", suggestion=hint) from None
    return DistributionMetadata(
        name=canonicalize_name(found.name),
        version=found.version,
        summary=_field(found, "Summary"),
        license_expression=_field(found, "License-Expression"),
        license_text=_field(found, "License")[:FIELD_CHARS],
        classifiers=tuple(text for text in found.metadata.get_all("Classifier") or () if text.startswith("License ::")),
        license_files=tuple(_files(found)),
    )


def derive_verdict(metadata: DistributionMetadata) -> LicenseVerdict:
    """Say what licence the metadata proves: the expression, else classifiers, else the field, else the files' text.

    A verdict keeps its words and loses its confidence if the licence files contradict it, if nothing but classifiers says it, or if
    it leaves open which variant of a licence is meant.
    """
    verdict = next((found for derive in _SOURCES if (found := derive(metadata))), None)
    if verdict is None:
        return LicenseVerdict(spdx=NOTHING, category="unknown", confidence=0.0, evidence="")
    return verdict.model_copy(update={"confidence": min(verdict.confidence, _most(metadata, verdict))})


def _most(metadata: DistributionMetadata, verdict: LicenseVerdict) -> float:
    """Say how sure one can be of a verdict at most."""
    in_files = {kind for name in _in_files(metadata) if (kind := _kind(name.spdx)) != "unknown"}
    if in_files and verdict.category not in in_files:
        return 0.5
    is_alone = not (in_files or _from_expression(metadata) or _from_field(metadata))
    return 0.6 if is_alone or _VAGUE.search(verdict.spdx) else 1.0


def evidence_stands(metadata: DistributionMetadata, verdict: LicenseVerdict) -> bool:
    """Tell whether the verdict's quote stands in what the metadata says about licences; line breaks do not count.

    Without a quote only `unknown` stands.
    """
    quote = _flat(verdict.evidence)
    if not quote:
        return verdict.category == "unknown"
    texts = (
        metadata.license_expression,
        metadata.license_text,
        *metadata.classifiers,
        *(file.text for file in metadata.license_files),
    )
    return any(quote in _flat(text) for text in texts)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _field(found: installed.Distribution, name: str) -> str:
    text = next(iter(found.metadata.get_all(name) or ()), "")
    return "" if text == "UNKNOWN" else text.strip()


_LICENSE_FILE = re.compile(r"(?i)(un)?licen[cs]e|copying|notice")


def _files(found: installed.Distribution) -> Iterator[LicenseFile]:
    declared = set(found.metadata.get_all("License-File") or ())
    paths = {_own_path(file): file for file in found.files or () if ".dist-info" in file.parts[0]}
    wanted = [path for path in paths if str(path) in declared or _LICENSE_FILE.match(path.name)]
    for path in sorted(wanted, key=lambda path: (len(path.parts), path))[:MAX_FILES]:
        try:
            with Path(str(found.locate_file(paths[path]))).open(encoding="utf-8", errors="replace") as file:
                yield LicenseFile(name=str(path), text=file.read(FILE_CHARS))
        except OSError:
            continue


def _own_path(file: PurePosixPath) -> PurePosixPath:
    """Give the path as `License-File` writes it: below `*.dist-info/` and, in newer wheels, `licenses/`."""
    inner = file.parts[2:] if file.parts[1:2] == ("licenses",) and len(file.parts) > 2 else file.parts[1:]  # noqa: PLR2004
    return PurePosixPath(*inner)


# --- SPDX ----------------------------------------------------------------------------------------------------------

_PERMISSIVE = """
    0BSD AFL-3.0 Apache-1.1 Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSD-4-Clause BSL-1.0 CC0-1.0 CC-BY-4.0
    CNRI-Python curl HPND ISC LicenseRef-BSD LicenseRef-Public-Domain MIT MIT-0 MIT-CMU NCSA OpenSSL PostgreSQL PSF-2.0
    Python-2.0 Python-2.0.1 Unlicense UPL-1.0 WTFPL X11 Zlib ZPL-2.1
""".split()  # noqa: SIM905 - a table of words
_PERMISSIVE_BY_LOWER = {name.lower(): name for name in _PERMISSIVE}
_COPYLEFT = re.compile(r"(?i)([AL]?GPL|MPL|EPL|EUPL|CDDL|OSL|CECILL|CC-BY-SA)(-|$)")
# A family of licences, without the version or the clauses that tell which one.
_VAGUE = re.compile(r"(?<![\w-])(LicenseRef-BSD|[AL]?GPL)(?![\w-])")
_PROPRIETARY = re.compile(r"(?i)LicenseRef-Proprietary|(BUSL|SSPL|Elastic|PolyForm|CC-BY-NC)-")

# Who must keep both licences keeps the stricter; who may choose takes the freer.
_STRICTER: tuple[Category, ...] = ("permissive", "unknown", "copyleft", "proprietary")
_FREER: tuple[Category, ...] = ("permissive", "copyleft", "proprietary", "unknown")


def _category_of(identifier: str) -> Category:
    if identifier.removesuffix("+").lower() in _PERMISSIVE_BY_LOWER:
        return "permissive"
    if _COPYLEFT.match(identifier):
        return "copyleft"
    return "proprietary" if _PROPRIETARY.match(identifier) else "unknown"


def _kind(expression: str) -> Category:
    """Read the category of an SPDX expression; `unknown` for what is none."""
    tokens = re.findall(r"[()]|[^\s()]+", expression)
    try:
        category = _either(tokens)
    except (IndexError, RecursionError):
        return "unknown"
    return "unknown" if tokens else category


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
    return _category_of(first)


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


def _named(text: str) -> list[_Name]:
    """Recognise the licences a short text or a classifier names."""
    found = [_Name(spdx, match.group()) for spdx, pattern in _NAMES if (match := pattern.search(text))]
    if gnu := _GNU.search(text):
        found.append(_Name(_gnu_identifier(gnu), gnu.group()))
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
# Only the disclaimer behind the clauses proves that there is no third one: the text may be cut before it.
_DISCLAIMER = re.compile(r"(?i)is\s+provided\s+by")
# A title, for many licences mention the GNU ones further down.
_GNU_TITLE = re.compile(
    r"(?is)\A.{0,200}?(?P<quote>GNU\s+((?P<kind>AFFERO|LESSER|LIBRARY)\s+)?GENERAL\s+PUBLIC\s+LICENSE"
    r"(\s+Version\s+(?P<version>\d(\.\d)?))?)"
)
_GNU_FAMILY = {"AFFERO": "AGPL", "LESSER": "LGPL", "LIBRARY": "LGPL"}


def _in_text(text: str) -> list[_Name]:
    """Recognise a licence by the words of its own text."""
    if gnu := _GNU_TITLE.match(text):
        family, version = _GNU_FAMILY.get((gnu["kind"] or "").upper(), "GPL"), gnu["version"]
        return [_Name(f"{family}-{version if '.' in version else version + '.0'}" if version else family, gnu["quote"])]
    found = {spdx: match.group() for spdx, pattern in _TEXTS if (match := pattern.search(text))}
    if _THIRD_CLAUSE.search(text) and "LicenseRef-BSD" in found:
        found["BSD-3-Clause"] = found.pop("LicenseRef-BSD")
    if _DISCLAIMER.search(text) and "LicenseRef-BSD" in found:
        found["BSD-2-Clause"] = found.pop("LicenseRef-BSD")
    return [_Name(spdx, quote) for spdx, quote in found.items()]


def _in_files(metadata: DistributionMetadata) -> list[_Name]:
    """Recognise the licences of the outermost files; deeper ones belong to what is bundled."""
    depth = min((file.name.count("/") for file in metadata.license_files), default=0)
    outer = (file for file in metadata.license_files if file.name.count("/") == depth)
    return [name for file in outer for name in _in_text(file.text)]


# --- from each source to a verdict ---------------------------------------------------------------------------------


def _from_expression(metadata: DistributionMetadata) -> LicenseVerdict | None:
    return _if_understood(metadata.license_expression, 0.99)


def _from_classifiers(metadata: DistributionMetadata) -> LicenseVerdict | None:
    found = [_Name(name.spdx, text) for text in metadata.classifiers for name in _named(text)]
    return _verdict(metadata, found, 0.95)


def _from_field(metadata: DistributionMetadata) -> LicenseVerdict | None:
    text = metadata.license_text
    if len(text) > _SHORT_CHARS:
        return _verdict(metadata, _in_text(text), 0.85)
    # Free text may look like an expression: "LGPL-2.1 or later" offers no licence called "later".
    words = [word for word in re.findall(r"[^\s()]+", text) if word not in {"AND", "OR"}]
    known = all(_category_of(word) != "unknown" for word in words)
    return (_if_understood(text, 0.95) if known else None) or _verdict(metadata, _named(text), 0.85)


def _from_files(metadata: DistributionMetadata) -> LicenseVerdict | None:
    return _verdict(metadata, _in_files(metadata), 0.8)


_SOURCES = (_from_expression, _from_classifiers, _from_field, _from_files)


def _if_understood(expression: str, confidence: float) -> LicenseVerdict | None:
    category = _kind(expression)
    if category == "unknown":
        return None
    spdx = " ".join(_PERMISSIVE_BY_LOWER.get(part.lower(), part) for part in expression.split())
    return LicenseVerdict(spdx=spdx, category=category, confidence=confidence, evidence=expression)


def _verdict(metadata: DistributionMetadata, found: Iterable[_Name], confidence: float) -> LicenseVerdict | None:
    """Join what was recognised: a choice if the metadata speaks of one, else all of them and less sure."""
    quotes = {_refined(metadata, name.spdx): name.quote[:_QUOTE_CHARS] for name in found}
    if not quotes:
        return None
    spdx = (" OR " if _offers_choice(metadata) else " AND ").join(sorted(quotes))
    category = _kind(spdx)
    return LicenseVerdict(
        spdx=spdx,
        category=category,
        confidence=confidence if len(quotes) == 1 else confidence - 0.2,
        evidence=next(quote for name, quote in quotes.items() if _kind(name) == category),
    )


def _refined(metadata: DistributionMetadata, spdx: str) -> str:
    """Say which BSD it is, if the field or the files tell."""
    if spdx != "LicenseRef-BSD":
        return spdx
    told = {name.spdx for name in (*_named(metadata.license_text[:_SHORT_CHARS]), *_in_files(metadata))}
    return next((name for name in ("BSD-3-Clause", "BSD-2-Clause") if name in told), spdx)


def _offers_choice(metadata: DistributionMetadata) -> bool:
    words = metadata.license_text[:_SHORT_CHARS]
    return bool(_CHOICE.search(words)) or any(
        re.search(r"(?i)\bdual[ -]licen[cs]ed", f.text) for f in metadata.license_files
    )
