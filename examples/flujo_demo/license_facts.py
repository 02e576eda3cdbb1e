"""Derive the true licence of an installed distribution from its metadata, to check an agent's answer.

It must not guess: if the metadata says nothing understandable, the verdict is `unknown`; and every claim of a verdict is backed by a quote
from the metadata. In: a distribution's name, or its metadata as a value. Out: values. Only `read_metadata` and `installed_distributions`
read installed files; the rest is pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from importlib import metadata as installed
from pathlib import Path, PurePosixPath
from typing import Annotated

from flujo_demo.license_names import (
    Category,
    LicenceName,
    category_of,
    in_text,
    is_vague,
    named,
    offers_choice,
    spelled,
)
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field

from flujo_client.errors import NonRetryableError

FIELD_CHARS = 4000
FILE_CHARS = 3000
MAX_FILES = 8
NOTHING = "NOASSERTION"
_SHORT_CHARS = 120
_QUOTE_CHARS = 200
_ON_CHANGES = "those who distribute it must offer the source of its files, including changed ones"
_ON_DERIVED = "derived works must stay under its licence when they are distributed"
_BY_FAMILY = {
    "AGPL": "the source of the whole work must be offered, also to those who use it over a network",
    "GPL": "the source of the whole work must be offered with it, under the same licence",
    "LGPL": "its own source must be offered, and users must be able to put another version in its place",
    "MPL": _ON_CHANGES,
    "EPL": _ON_CHANGES,
    "CDDL": _ON_CHANGES,
    "EUPL": _ON_DERIVED,
    "OSL": _ON_DERIVED,
    "CECILL": _ON_DERIVED,
    "CC-BY-SA": _ON_DERIVED,
}
_FAMILY = re.compile(rf"(?i)(?<![\w-])({'|'.join(_BY_FAMILY)})(?=-|\W|$)")


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LicenseFile(_Value):
    """The beginning of a licence file; `name` is its path below the place where the distribution has them."""

    name: str
    text: str


class DistributionMetadata(_Value):
    """The metadata of one installed distribution; its name is normalised, and texts are cut to their beginnings."""

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


def installed_distributions() -> list[str]:
    """List the normalised names of everything installed, each once, sorted."""
    return sorted({canonicalize_name(found.name) for found in installed.distributions() if found.name})


def read_metadata(name: str) -> DistributionMetadata:
    """Read the metadata of an installed distribution. Raises NonRetryableError if there is no such distribution."""
    try:
        found = installed.distribution(name)
    except (installed.PackageNotFoundError, ValueError):
        near = difflib.get_close_matches(canonicalize_name(name), installed_distributions(), n=1)
        hint = f"did you mean {near[0]}?" if near else None
        raise NonRetryableError(f"no distribution named {name!r} is installed", suggestion=hint) from None
    fields = found.metadata  # read from the file each time it is asked for
    return DistributionMetadata(
        name=canonicalize_name(fields["Name"]),
        version=fields["Version"],
        summary=_field(fields, "Summary"),
        license_expression=_field(fields, "License-Expression"),
        license_text=_field(fields, "License")[:FIELD_CHARS],
        classifiers=tuple(text for text in fields.get_all("Classifier") or () if text.startswith("License ::")),
        license_files=tuple(_files(found, declared=set(fields.get_all("License-File") or ()))),
    )


def derive_verdict(metadata: DistributionMetadata) -> LicenseVerdict:
    """Return the licence that the metadata proves: the expression, else classifiers, else the field, else the files' text.

    A verdict loses its confidence if the licence files contradict it, if only classifiers support it, or if it leaves open which variant of
    a licence is meant.
    """
    verdict = next((found for derive in _SOURCES if (found := derive(metadata))), None)
    if verdict is None:
        return LicenseVerdict(spdx=NOTHING, category="unknown", confidence=0.0, evidence="")
    return verdict.model_copy(update={"confidence": min(verdict.confidence, _most(metadata, verdict))})


def _most(metadata: DistributionMetadata, verdict: LicenseVerdict) -> float:
    """Return the highest possible confidence in a verdict."""
    in_files = {kind for name in _in_files(metadata) if (kind := category_of(name.spdx)) != "unknown"}
    if in_files and verdict.category not in in_files:
        return 0.5
    is_alone = not (in_files or _from_expression(metadata) or _from_field(metadata))
    return 0.6 if is_alone or is_vague(verdict.spdx) else 1.0


def evidence_holds(metadata: DistributionMetadata, verdict: LicenseVerdict) -> bool:
    """Return whether the verdict's quote is in what the metadata says about licences; line breaks do not count.

    Without a quote only `unknown` is accepted.
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


def _field(fields: installed.PackageMetadata, name: str) -> str:
    text = next(iter(fields.get_all(name) or ()), "")
    return "" if text == "UNKNOWN" else text.strip()


_LICENSE_FILE = re.compile(r"(?i)(un)?licen[cs]e|copying|notice")


def _files(found: installed.Distribution, *, declared: set[str]) -> Iterator[LicenseFile]:
    paths = {_own_path(file): file for file in found.files or () if ".dist-info" in file.parts[0]}
    wanted = [path for path in paths if str(path) in declared or _LICENSE_FILE.match(path.name)]
    for path in sorted(wanted, key=lambda path: (len(path.parts), path))[:MAX_FILES]:
        try:
            with Path(str(found.locate_file(paths[path]))).open(encoding="utf-8", errors="replace") as file:
                yield LicenseFile(name=str(path), text=file.read(FILE_CHARS))
        except OSError:
            continue


def _own_path(file: PurePosixPath) -> PurePosixPath:
    """Return the path as `License-File` writes it: below `*.dist-info/` and, in newer wheels, `licenses/`."""
    inner = file.parts[2:] if file.parts[1:2] == ("licenses",) and len(file.parts) > 2 else file.parts[1:]  # noqa: PLR2004
    return PurePosixPath(*inner)


def _in_files(metadata: DistributionMetadata) -> list[LicenceName]:
    """Recognise the licences of the outermost files; deeper ones belong to bundled code."""
    depth = min((file.name.count("/") for file in metadata.license_files), default=0)
    outer = (file for file in metadata.license_files if file.name.count("/") == depth)
    return [name for file in outer for name in in_text(file.text)]


# --- from each source to a verdict ---------------------------------------------------------------------------------


def _from_expression(metadata: DistributionMetadata) -> LicenseVerdict | None:
    return _if_understood(metadata.license_expression, 0.99)


def _from_classifiers(metadata: DistributionMetadata) -> LicenseVerdict | None:
    found = [LicenceName(name.spdx, text) for text in metadata.classifiers for name in named(text)]
    return _verdict(metadata, found, 0.95)


def _from_field(metadata: DistributionMetadata) -> LicenseVerdict | None:
    text = metadata.license_text
    if len(text) > _SHORT_CHARS:
        return _verdict(metadata, in_text(text), 0.85)
    # Free text may look like an expression: "LGPL-2.1 or later" offers no licence called "later".
    words = [word for word in re.findall(r"[^\s()]+", text) if word not in {"AND", "OR"}]
    known = all(category_of(word) != "unknown" for word in words)
    return (_if_understood(text, 0.95) if known else None) or _verdict(metadata, named(text), 0.85)


def _from_files(metadata: DistributionMetadata) -> LicenseVerdict | None:
    return _verdict(metadata, _in_files(metadata), 0.8)


_SOURCES = (_from_expression, _from_classifiers, _from_field, _from_files)


def _if_understood(expression: str, confidence: float) -> LicenseVerdict | None:
    category = category_of(expression)
    if category == "unknown":
        return None
    return LicenseVerdict(spdx=spelled(expression), category=category, confidence=confidence, evidence=expression)


def _verdict(metadata: DistributionMetadata, found: Iterable[LicenceName], confidence: float) -> LicenseVerdict | None:
    """Join the recognised licences: a choice if the metadata offers one, else all of them with less confidence."""
    quotes = {_refined(metadata, name.spdx): name.quote[:_QUOTE_CHARS] for name in found}
    if not quotes:
        return None
    spdx = (" OR " if _offers_choice(metadata) else " AND ").join(sorted(quotes))
    category = category_of(spdx)
    return LicenseVerdict(
        spdx=spdx,
        category=category,
        confidence=confidence if len(quotes) == 1 else confidence - 0.2,
        evidence=next(quote for name, quote in quotes.items() if category_of(name) == category),
    )


def _refined(metadata: DistributionMetadata, spdx: str) -> str:
    """Return which BSD licence it is, if the field or the files name it."""
    if spdx != "LicenseRef-BSD":
        return spdx
    declared = {name.spdx for name in (*named(metadata.license_text[:_SHORT_CHARS]), *_in_files(metadata))}
    return next((name for name in ("BSD-3-Clause", "BSD-2-Clause") if name in declared), spdx)


def _offers_choice(metadata: DistributionMetadata) -> bool:
    return offers_choice(metadata.license_text[:_SHORT_CHARS]) or any(
        re.search(r"(?i)\bdual[ -]licen[cs]ed", file.text) for file in metadata.license_files
    )


def duties(verdict: LicenseVerdict) -> str:
    """Return what each copyleft family in the licence requires of those who pass the software on; empty if it names no known one.

    It is not legal advice.
    """
    families = dict.fromkeys(found.upper() for found in _FAMILY.findall(verdict.spdx))
    return "; ".join(f"{family}: {_BY_FAMILY[family]}" for family in families)
