"""What a copyleft licence asks of whoever passes the software on, in a sentence for each family. Pure; no legal advice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flujo_worker.demo.license_facts import LicenseVerdict

_ON_CHANGES = "whoever distributes it must offer the source of its files, changed ones too"
_ON_DERIVED = "what is derived from it must stay under its licence when it is distributed"
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


def duties(verdict: LicenseVerdict) -> str:
    """Say what each copyleft family that the licence names asks for; empty if it names none that is known."""
    families = dict.fromkeys(found.upper() for found in _FAMILY.findall(verdict.spdx))
    return "; ".join(f"{family}: {_BY_FAMILY[family]}" for family in families)
