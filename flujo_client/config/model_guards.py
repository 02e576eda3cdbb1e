"""The fleet's settings of circuit breakers and rate limits, made of rows in Postgres (ADR 36)."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args

import pydantic
from pydantic import Field

from flujo_client.config.manager import Settings
from flujo_client.config.models import BreakerSettings, ModelRate, Section, Variable
from flujo_client.contract.limits import EVERY_MODEL, Guard, GuardRow
from flujo_client.errors import SettingsError

logger = logging.getLogger(__name__)


class RateSettings(ModelRate):
    """The rate limit of a model, with the seconds in which it reaches its full speed when nothing is known of it."""

    slow_start_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0


SECTIONS: Final[Mapping[Guard, type[BreakerSettings | RateSettings]]] = {
    "breaker": BreakerSettings,
    "rate": RateSettings,
}
S = TypeVar("S", bound=Section)


class ModelLimit(NamedTuple):
    """A rate limit, and the name or pattern of the models that it is for."""

    pattern: str
    settings: RateSettings


class FleetGuards:
    """The settings of all models. Rows of a model's own name count before patterns, longer patterns before shorter ones."""

    def __init__(self, rows: Sequence[GuardRow]) -> None:
        self.rows = sorted(
            rows, key=lambda row: (not set(row.model) & set("*?["), len(row.model), row.model), reverse=True
        )
        self.breaker = lru_cache(maxsize=1024)(self._breaker)
        self.limit = lru_cache(maxsize=1024)(self._limit)

    def cleared_at(self, guard: Guard, model: str) -> float:
        """Return when an operator last closed a model's breaker or ended its slow-down, in unix seconds."""
        return max((row.cleared_at for row in self._of(guard, model)), default=0.0)

    def _breaker(self, model: str) -> BreakerSettings:
        """Return a model's breaker settings: each row adds to those that are less specific."""
        merged = ChainMap(*(dict(row.settings or {}) for row in self._of("breaker", model)))
        return _read(BreakerSettings, merged, model)

    def _limit(self, model: str) -> ModelLimit | None:
        """Return a model's rate limit, if it has one: the most specific row counts alone."""
        for row in self._of("rate", model):
            if row.settings is not None:
                return ModelLimit(row.model, _read(RateSettings, row.settings, row.model))
        return None

    def _of(self, guard: Guard, model: str) -> list[GuardRow]:
        own = (row for row in self.rows if row.guard == guard)
        return [row for row in own if row.model == model or fnmatchcase(model, row.model)]


def first_rows(settings: Settings) -> list[GuardRow]:
    """Return the rows that a process's settings give, without defaults."""
    breakers = GuardRow("breaker", EVERY_MODEL, _written(settings.breakers))
    slow_start_s, models = settings.rate_limits.slow_start_s, settings.rate_limits.models.items()
    rates = {model: RateSettings(slow_start_s=slow_start_s, **dict(rate)) for model, rate in models}
    return [breakers, *(GuardRow("rate", model, _written(rate)) for model, rate in rates.items())]


def read_edits(guard: Guard, pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs as settings of a guard; an empty value is none. Raises SettingsError."""
    section, values = SECTIONS[guard], dict[str, Any]()
    for key, _, value in (pair.partition("=") for pair in pairs):
        if key not in section.model_fields:
            raise SettingsError(f"there is no setting `{key}` of a {guard}", suggestion=", ".join(section.model_fields))
        may_be_none = type(None) in get_args(section.model_fields[key].annotation)
        values[key] = None if may_be_none and not value else Variable(value)
    try:
        read = section.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise SettingsError(f"`{key}`: {first['msg'].removeprefix('Value error, ')}") from None
    return read.model_dump(mode="json", include=set(values))


def _written(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude_defaults=True)


def _read(section: type[S], values: Mapping[str, Any], model: str) -> S:
    """Read a row's settings. Other versions may know other keys; a value that means nothing here must not stop a fleet."""
    try:
        return section.model_validate({key: value for key, value in values.items() if key in section.model_fields})
    except pydantic.ValidationError as error:
        logger.warning("the settings of %s in flujo_model_guards are not used: %s", model, error)
        return section()
