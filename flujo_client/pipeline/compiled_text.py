"""Compile expressions, templates and schemas to the functions that a pipeline calls; two of the same text are equal, in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from flujo_client.contract.json_schema import fits_schema
from flujo_client.contract.verdict import ValidationResult
from flujo_client.errors import NonRetryableError
from flujo_client.expressions import templates
from flujo_client.expressions.templates import NAMES, Expression, Template, Undefined
from flujo_client.plan.identity import whole
from flujo_client.serial import digest

TEMPLATE_NAMES: Final = (*NAMES, "this")
"""The names that a template may begin with: `this` is the input, which in the first step of a map's body is the item."""

OWN_NAMES: Final = frozenset({"previous_step", "this"})
"""Those of them that say what comes in; the others read the context."""


@lru_cache(maxsize=4096)
def expression_of(text: str) -> Expression:
    """Read an expression, once per process; raises BlueprintTextError."""
    return templates.compile_expression(text)


@lru_cache(maxsize=4096)
def template_of(text: str, undefined: Undefined = "warn") -> Template:
    """Read a template, once per process; raises BlueprintTextError."""
    return templates.compile_template(text, allowed=TEMPLATE_NAMES, undefined=undefined)


def names_of(value: Any, context: Any) -> dict[str, Any]:
    """Return the names that texts may use, where `value` is the input. A name that does not exist is missing, not null."""
    names = {"previous_step": value, "this": value}
    if context is None:
        return names
    outputs = getattr(context, "step_outputs", None)
    if isinstance(outputs, Mapping):
        names["steps"] = {name: {"output": output} for name, output in outputs.items()}
    if answers := getattr(context, "hitl_history", None):
        names["resume_input"] = answers[-1].answer
    return names | {"context": context}


@dataclass(frozen=True)
class Expressed:
    """A function that returns the value of an expression."""

    text: str

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"expression": self.text}

    def __call__(self, value: Any, context: Any) -> Any:
        """Evaluate it; raises TemplateResolutionError."""
        return expression_of(self.text).evaluate(names_of(value, context))


@dataclass(frozen=True, slots=True)
class Filling:
    """The options for filling in templates."""

    undefined: Undefined = "warn"
    """The policy for a missing name, as in `Template`."""
    on_missing: Callable[[str], object] | None = None
    """The callback for each missing name under `warn`."""
    on_resolved: Callable[[list[str]], object] | None = None
    """The callback for the names that a template reads, after it is filled in; it never gets their values."""

    def fill(
        self,
        text: str,
        names: Mapping[str, Any],
        *,
        as_text: bool,
        read: Callable[[str, Undefined], Template] = template_of,
    ) -> Any:
        """Fill one text in, a template that `read` reads; raises TemplateResolutionError."""
        template = read(text, self.undefined)
        evaluate = template.render if as_text else template.evaluate
        filled = evaluate(names, on_missing=self.on_missing)
        if self.on_resolved is not None and not template.is_plain:
            self.on_resolved(sorted(".".join(path) for path in template.names))
        return filled


current_filling: Final[ContextVar[Filling]] = ContextVar("filling", default=Filling())  # noqa: B039 - frozen


@contextmanager
def filling_by(filling: Filling) -> Iterator[None]:
    """Fill every template inside in so."""
    token = current_filling.set(filling)
    try:
        yield
    finally:
        current_filling.reset(token)


@dataclass(frozen=True)
class Templated:
    """A function that fills in a template."""

    value: Any = field(hash=False)
    """A text; or mappings and lists with texts in them, each of which is filled in."""
    as_text: bool = False
    """Whether to return a text for a template that is one tag, instead of the value itself."""

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"template": whole(self.value), "as_text": self.as_text}

    def __call__(self, value: Any, context: Any, *_: Any) -> Any:
        """Fill it in, by the `filling_by` in force; raises TemplateResolutionError."""
        filling, names = current_filling.get(), names_of(value, context)

        def fill(given: Any) -> Any:
            if isinstance(given, str):
                return filling.fill(given, names, as_text=self.as_text)
            if isinstance(given, Mapping):
                return {key: fill(each) for key, each in given.items()}
            return [fill(each) for each in given] if isinstance(given, list) else given

        return fill(self.value)


@dataclass(frozen=True)
class Finished:
    """A loop's exit condition: the output says that its agent has finished, by `finish` as its `action` or `type`."""

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"stop_when": "agent_finished"}

    def __call__(self, output: Any, _context: Any) -> bool:
        return "finish" in (part_of(output, "action"), part_of(output, "type"))


@dataclass(frozen=True)
class Changes:
    """An agent that changes the context and passes its input on."""

    put: tuple[tuple[str, str, Any], ...] = field(hash=False)
    """The changes in order, each (operation, dotted path, value). The operation is set, append or merge; texts in values are templates."""

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"changes": whole(self.put)}

    def run(self, data: Any, *, context: Any = None) -> Any:
        """Change the attempt's own copy of the context; raises NonRetryableError if there is none, or a value in it cannot be changed so."""
        if context is None:
            raise NonRetryableError("there is no context to change", suggestion="give the pipeline a context_model")
        for operation, path, value in self.put:
            _change(context, path, operation, Templated(value)(data, context))
        return data


def part_of(place: Any, name: str, otherwise: Any = None) -> Any:
    """Return a key of a mapping or a field of an object."""
    return place.get(name, otherwise) if isinstance(place, Mapping) else getattr(place, name, otherwise)


def _change(context: Any, path: str, operation: str, value: Any) -> None:
    *above, last = path.split(".")
    place = context
    for part in above:
        if part_of(place, part) is None:
            _put(place, part, {}, path)
        place = part_of(place, part)
    _put(place, last, _changed(operation, part_of(place, last), value, path), path)


def _changed(operation: str, old: Any, value: Any, path: str) -> Any:
    if operation == "set":
        return value
    kind: type = list if operation == "append" else dict
    for each in (old,) if kind is list else (old, value):
        if each is not None and not isinstance(each, kind):
            problem = f"cannot {operation} to '{path}': there is a {type(each).__name__}, not a {kind.__name__}"
            raise NonRetryableError(problem)
    return [*(old or []), value] if kind is list else {**(old or {}), **value}


def _put(place: Any, name: str, value: Any, path: str) -> None:
    try:
        if isinstance(place, dict):
            place[name] = value
        else:
            setattr(place, name, value)
    except (TypeError, ValueError, AttributeError) as error:  # pydantic's own words would show values
        problem = f"'{path}' of {type(place).__name__} does not accept a {type(value).__name__}"
        raise NonRetryableError(problem) from error


@dataclass(frozen=True, eq=False)
class Fits:
    """A processor and validator that accepts only values that fit a JSON Schema."""

    schema: Mapping[str, Any]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"schema": digest(whole(self.schema))}

    def process(self, data: Any, context: Any) -> Any:  # noqa: ARG002 - a processor's own form
        """Return an input. Raises NonRetryableError, which names the place but not its value: the input does not fit."""
        if wrong := fits_schema(data, dict(self.schema)):
            raise NonRetryableError(f"the step's input does not fit its input_schema: {wrong}")
        return data

    def validate(self, output: Any) -> ValidationResult:
        """Judge an output; the place is named, its value is not."""
        wrong = fits_schema(output, dict(self.schema))
        return ValidationResult(is_valid=wrong is None, feedback=wrong, validator_name="output_schema")
