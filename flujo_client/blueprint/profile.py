"""Profiles: the severity that a project gives to each rule's findings. Pure.

A profile can hide a warning, or make an error of it. It cannot hide what refuses a pipeline: `flujo validate` would pass what
`flujo enqueue` refuses. In: names of rules, or patterns of them, and a report. Out: the report as the profile has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.rules.table import RULES
from flujo_client.contract.validation import Finding, ValidationReport
from flujo_client.errors import SettingsError

WEIGHTS: Final = ("off", "warn", "error")


@dataclass(frozen=True, slots=True)
class Profile:
    """The weights of findings."""

    weights: tuple[Mapping[str, str], ...] = ()
    """Tables of weights by rule or pattern, those that take precedence first; in each an exact name before the first matching pattern."""

    def weight(self, rule: str) -> str | None:
        """Return the weight of a rule; None if the profile does not set it."""
        found = (_weight(table, rule) for table in self.weights)
        return next((each for each in found if each is not None), None)

    def applied(self, report: ValidationReport) -> ValidationReport:
        """Return a report without what is off, and with what is to be an error as one."""
        return replace(report, findings=tuple(each for given in report.findings if (each := self._taken(given))))

    def kept(self, report: ValidationReport) -> list[str]:
        """List the rules of a report that stay errors although the profile lowers them."""
        return sorted({each.rule for each in report.errors if self.weight(each.rule) in ("off", "warn")})

    def _taken(self, finding: Finding) -> Finding | None:
        weight = self.weight(finding.rule)
        if finding.severity == "error" or weight in (None, "warn"):
            return finding
        return None if weight == "off" else replace(finding, severity="error")


def checked(weights: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Return a table of weights back.

    Args:
        weights: as it was written.
        where: names it in errors.

    Raises:
        SettingsError: it names no rule, or a weight that is none.
    """
    for name, weight in weights.items():
        if weight not in WEIGHTS:
            near = nearest(weight, WEIGHTS)
            way_out = f"did you mean '{near}'?" if near else f"write one of {', '.join(WEIGHTS)}"
            raise SettingsError(f"{where}: {shown(name)}: '{shown(weight)}' is not a weight", suggestion=way_out)
        if not any(fnmatchcase(rule, name) for rule in RULES):
            near = nearest(name, RULES)
            way_out = f"did you mean '{near}'?" if near else "`flujo validate --list-rules` lists them"
            raise SettingsError(f"{where}: '{shown(name)}' is not a rule and matches none", suggestion=way_out)
    return weights


def _weight(table: Mapping[str, str], rule: str) -> str | None:
    if rule in table:
        return table[rule]
    return next((weight for pattern, weight in table.items() if fnmatchcase(rule, pattern)), None)
