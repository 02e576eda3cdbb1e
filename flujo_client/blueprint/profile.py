"""Profiles: what a project makes of each rule's findings (requirements §2.7). Pure.

A profile can hide a warning, or make an error of it. It cannot hide what refuses a pipeline: `flujo validate` would pass what
`flujo enqueue` refuses. In: names of rules, or patterns of them, and a report. Out: the report as the profile has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.rules.table import RULES
from flujo_client.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.blueprint.finding import Finding
    from flujo_client.blueprint.validate import Report

LEVELS: Final = ("off", "warn", "error")


@dataclass(frozen=True, slots=True)
class Profile:
    """What becomes of findings.

    Attributes:
        levels: tables of levels by rule or pattern, those that count more first; in each an exact name before the first pattern that fits.
    """

    levels: tuple[Mapping[str, str], ...] = ()

    def level(self, rule: str) -> str | None:
        """Give the level of a rule; None where nothing is said of it."""
        found = (_level(table, rule) for table in self.levels)
        return next((each for each in found if each is not None), None)

    def applied(self, report: Report) -> Report:
        """Give a report without what is off, and with what is to be an error as one."""
        return replace(report, findings=tuple(each for given in report.findings if (each := self._taken(given))))

    def kept(self, report: Report) -> list[str]:
        """The rules of a report that are told as errors although they are to be less."""
        return sorted({each.rule for each in report.errors if self.level(each.rule) in ("off", "warn")})

    def _taken(self, finding: Finding) -> Finding | None:
        level = self.level(finding.rule)
        if finding.severity == "error" or level in (None, "warn"):
            return finding
        return None if level == "off" else replace(finding, severity="error")


def checked(levels: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Give a table of levels back.

    Args:
        levels: as somebody wrote it.
        where: names it in errors.

    Raises:
        SettingsError: it names no rule, or a level that is none.
    """
    for name, level in levels.items():
        if level not in LEVELS:
            near = nearest(level, LEVELS)
            way_out = f"did you mean '{near}'?" if near else f"write one of {', '.join(LEVELS)}"
            raise SettingsError(f"{where}: {shown(name)}: '{shown(level)}' is no level", suggestion=way_out)
        if not any(fnmatchcase(rule, name) for rule in RULES):
            near = nearest(name, RULES)
            way_out = f"did you mean '{near}'?" if near else "`flujo validate --list-rules` lists them"
            raise SettingsError(f"{where}: '{shown(name)}' is no rule, and fits none", suggestion=way_out)
    return levels


def _level(table: Mapping[str, str], rule: str) -> str | None:
    if rule in table:
        return table[rule]
    return next((level for pattern, level in table.items() if fnmatchcase(rule, pattern)), None)
