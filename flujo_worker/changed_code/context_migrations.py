"""Handle contexts that were written with another version of their model: accept, migrate by the pipeline's function, or reject them.

The fields of a model are recorded, so contexts are only examined if it ever had other fields. In: a live pipeline and a packed context. Out:
that context, or the migrated one; a rejection that parks the run, without changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flujo_client.contract.code import CONTEXT_FIELD, ParkCause
from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.errors import ContextMergeError
from flujo_client.pipeline.context_info import REQUIRED, SCHEMA, TYPE, fields_digest, fields_of_model, once_per_model
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import model_name
from flujo_client.plan.identity import whole
from flujo_client.redact import preview, redact_tree
from flujo_client.schemas.fail_fast import places_of, refuse_costly
from flujo_client.serial import Packed, decode, digest, dumps, encode
from flujo_worker.changed_code.code_registry import CodeMismatch, LoadedPipeline, put_bounded
from flujo_worker.changed_code.parts import DIGEST_LENGTH, AgentPart
from flujo_worker.domain.context_change import ContextChange, change_of, fields_of, from_another, is_of
from flujo_worker.errors import StoreError
from flujo_worker.observe.log import emit
from flujo_worker.ports import BlobStore, CodeStore
from flujo_worker.runtime.question import UserCodeRuntime, checked, fetched

_LONGEST_DEFAULT: Final = 40


@once_per_model
def context_parts(model: type[BaseModel]) -> tuple[AgentPart, ...]:
    """Return each field as a part of what a step is performed with: its type, and its default."""
    known = fields_of_model(model)
    return tuple(_part(name, field, known[name]) for name, field in model.model_fields.items())


def _part(name: str, field: FieldInfo, known: dict[str, Any]) -> AgentPart:
    default = _default(field)
    shown = "required" if known[REQUIRED] else f"default {_shown(name, default)}"
    made_of = [known[SCHEMA], known[REQUIRED], default]
    return AgentPart(CONTEXT_FIELD + f"'{name}'", digest(whole(made_of))[:DIGEST_LENGTH], f"{known[TYPE]}, {shown}")


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return f"of {getattr(field.default_factory, '__qualname__', type(field.default_factory).__qualname__)}()"
    return None if field.default is PydanticUndefined else whole(field.default)


def _shown(name: str, default: Any) -> str:
    shown = redact_tree(default, name)
    return preview(dumps(shown).decode(), _LONGEST_DEFAULT)


_PLAIN: Final = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "dict"}
_OTHER: Final = "other"


@once_per_model
def shapes_of_model(model: type[BaseModel]) -> dict[str, frozenset[str]]:
    """Return for each field whose type says so which stored values are of it: text, numbers, lists and so on, or values with a tag."""
    found = {name: _shapes(field.rebuild_annotation()) for name, field in model.model_fields.items()}
    return {name: shapes for name, shapes in found.items() if shapes is not None}


def shape_of(tree: Any) -> str:
    return _OTHER if isinstance(tree, dict) and "$" in tree else _PLAIN[type(tree)]


def _shapes(annotation: Any) -> frozenset[str] | None:
    """Return the shapes of a type's values; None where any may be one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _shapes(get_args(annotation)[0])
    if origin is Literal:
        return frozenset(_PLAIN.get(type(each), _OTHER) for each in get_args(annotation))
    if origin in (Union, UnionType):
        parts = [_shapes(each) for each in get_args(annotation)]
        return None if None in parts else frozenset().union(*(each for each in parts if each))
    kind = type(None) if annotation is None else origin or annotation
    if kind is float:
        return frozenset({"float", "int"})
    if kind in _PLAIN:
        return frozenset({_PLAIN[kind]})
    return frozenset({_OTHER}) if isinstance(kind, type) and issubclass(kind, BaseModel) else None


_SHOWN = 3
_WAY_OUT = "give the pipeline a function in `context_migrations` under the version or the fingerprint that the run has"
LOOK_AGAIN_S = 5.0
"""Seconds that a process caches the former fields of a model: a worker with another version may have started since."""
_SHORTEST = 12
"""Characters of a fingerprint that name it, as they are shown."""


class MigratedContext(NamedTuple):
    """A context after its migration: by the function under which key, and why. None: it has the fields of the present model, under another name."""

    context: Packed
    key: str | None
    changes: tuple[str, ...]

    def emit(self) -> None:
        emit("context.migrated", migration=self.key, changes=list(self.changes))


class ContextMigrations:
    """Makes contexts fit the models that are here."""

    def __init__(self, code: CodeStore, blobs: BlobStore, bench: UserCodeRuntime) -> None:
        self._code, self._blobs, self._bench = code, blobs, bench
        self._changes: dict[tuple[str, type[BaseModel] | None], tuple[float, ContextChange]] = {}

    def are_needless(self, entry: LoadedPipeline) -> bool:
        """Return whether every context of a pipeline can be read as it is, by what this process knows already."""
        return entry.pipeline.context_model is None or ((known := self._known(entry)) is not None and not known)

    def are_known(self, entry: LoadedPipeline) -> bool:
        """Return whether this process knows what changed in a pipeline's model."""
        return entry.pipeline.context_model is None or self._known(entry) is not None

    def look_up(self, entries: Sequence[LoadedPipeline]) -> list[None]:
        """Look up what changed in the models of pipelines, once for all attempts that need it at this moment."""
        for each in entries:
            if each.pipeline.context_model is not None:
                self.change(each, each.pipeline.context_model)
        return [None] * len(entries)

    def migrate(self, entry: LoadedPipeline, ticket: RunHeader, packed: Packed | None) -> MigratedContext | None:
        """Migrate a context; None for one that can be read as it is, and for any other value.

        Raises ContextMisfit: it cannot be read, and no function of the pipeline makes it fit.
        """
        model = entry.pipeline.context_model
        if model is None or packed is None or not (change := self.change(entry, model)):
            return None
        if packed.is_reference:
            packed = fetched(self._blobs, (packed,))[packed.digest]
        tree, name = packed.tree(), model_name(model) or ""
        if not is_of(tree, name, *change.models):
            return None
        former = tree["c"]
        change = change if former == name else from_another(change)
        misfits = tuple(change.misfits(tree, self._fits(model, change, tree)))
        if misfits:
            return self._by_function(entry, ticket, model, tree, misfits)
        if former == name:
            return None
        renamed = f"its model was '{former}' and is '{name}' now"
        return MigratedContext(Packed.of({**tree, "c": name}, like=(packed,)), None, (renamed,))

    def look_again(self, entry: LoadedPipeline, envelope: Envelope) -> MigratedContext | None:
        """Do what `migrate` does with an attempt's context, after looking up again what fields its model had."""
        self.forget()
        return self.migrate(entry, envelope.ticket, envelope.context)

    def forget(self) -> None:
        """Look up again what fields models had: another worker has newer code than this one."""
        self._changes.clear()

    def live(self, tree: Any) -> Any:
        """Return a stored value as the live one."""
        return decode(tree, resolve=self._bench.resolve)

    def change(self, entry: LoadedPipeline, model: type[BaseModel]) -> ContextChange:
        """Return what changed in a pipeline's model, as this process knows it."""
        found = self._known(entry)
        if found is None:
            at, now = time.monotonic(), fields_of_model(model)
            before = self._code.context_fields(str(model_name(model)), fields_digest(now), now)
            found = change_of(now, before, keeps_extra=model.model_config.get("extra") == "allow")
            found = replace(found, models=self._code.former_models(entry.plan.fingerprint) - _imported(entry))
            put_bounded(self._changes, (entry.plan.fingerprint, model), (at, found))
        return found

    def _known(self, entry: LoadedPipeline) -> ContextChange | None:
        at, found = self._changes.get((entry.plan.fingerprint, entry.pipeline.context_model), (0.0, None))
        return found if time.monotonic() - at < LOOK_AGAIN_S else None

    def _fits(self, model: type[BaseModel], change: ContextChange, tree: Any) -> dict[str, bool]:
        """Return for each field that had another type whether the stored value is of the present one."""
        sent = fields_of(tree)
        return {name: self._is_valid(model, name, sent[name]) for name in change.retyped if name in sent}

    def _is_valid(self, model: type[BaseModel], name: str, tree: Any) -> bool:
        try:
            TypeAdapter(model.model_fields[name].rebuild_annotation()).validate_python(self.live(tree), strict=True)
        except Exception:  # noqa: BLE001 - a class that is gone, a validator of the user's: it does not fit
            return False
        return True

    def _by_function(
        self, entry: LoadedPipeline, ticket: RunHeader, model: type[BaseModel], tree: Any, misfits: tuple[str, ...]
    ) -> MigratedContext:
        tried: list[str] = []
        for key, function in self._functions(entry, ticket):
            try:
                given = {name: self.live(value) for name, value in fields_of(tree).items()}
                made = _checked(model, self._bench.call(function, partial(function, given)))
                return MigratedContext(Packed.of(encode(made, path="context")), key, misfits)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - after any error of a user's function, the run waits for a better one
                tried.append(f"the migration for '{key}' {_why(error)}")
        why = f"{_listed(misfits)}; {'; '.join(tried) or _WAY_OUT}"
        raise ContextMisfit(f"its context does not fit {model.__qualname__}: {why}")

    def _functions(self, entry: LoadedPipeline, ticket: RunHeader) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Return the functions that may apply, those for the plan that the run had last first."""
        given: Mapping[str, Any] = entry.pipeline.context_migrations
        if not given:
            return
        for fingerprint, version in dict.fromkeys(self._code.plans_of_run(ticket.run)):
            for key, function in given.items():
                if key == version or (len(key) >= _SHORTEST and fingerprint.startswith(key)):
                    yield key, function


def _imported(entry: LoadedPipeline) -> frozenset[str | None]:
    """Return the context models of the pipelines that a pipeline imports; they do not replace its own."""
    imports = [step for step in entry.steps.values() if isinstance(step, ImportStep)]
    return frozenset(model_name(getattr(each.pipeline, "context_model", None)) for each in imports)


def may_be_other(model: type[BaseModel], tree: Any) -> bool:
    """Return whether a context has a value that is not of its field's type here: a worker with another version of the model may have written it.

    Raises ContextMisfit: it has fields that its model does not have here, and reading it would drop them.
    """
    if not is_of(tree, model_name(model) or ""):
        return False
    sent, shapes = fields_of(tree), shapes_of_model(model)
    others = () if model.model_config.get("extra") == "allow" else sent.keys() - model.model_fields.keys()
    if others:
        shown = ", ".join(f"'{name}'" for name in sorted(others)[:_SHOWN])
        what = f"its context has fields that {model.__qualname__} does not have here: {shown}"
        raise ContextMisfit(f"{what}; a worker with the newer code will take it")
    return any(shape_of(each) not in shapes[name] for name, each in sent.items() if name in shapes)


class ContextMisfit(CodeMismatch):
    """A context that cannot be read by the models that are here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=ParkCause("code", message))


def fitting(migrations: ContextMigrations, entry: LoadedPipeline, envelope: Envelope) -> MigratedContext | None:
    """Migrate an attempt's context, if it needs that; raises ContextMisfit.

    A container's context stays as it began, because the changes of its branches are relative to it; its readers migrate it.
    """
    if entry.plan.locate(envelope.address).nodes is None:
        return None
    return migrations.migrate(entry, envelope.ticket, envelope.context)


def _listed(misfits: tuple[str, ...]) -> str:
    more = len(misfits) - _SHOWN
    return "; ".join(misfits[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _checked(model: type[BaseModel], made: Any) -> BaseModel:
    """Make a context from a function's result. Raises ContextMergeError or TypeError: it does not fit."""
    if isinstance(made, model):
        checked_context: BaseModel = checked(made)
        return checked_context
    if not isinstance(made, Mapping):
        raise TypeError(f"returned a {type(made).__name__}; return a mapping of fields, or a {model.__qualname__}")
    unknown = sorted(str(name) for name in made if name not in model.model_fields)
    if unknown and model.model_config.get("extra") != "allow":
        raise TypeError(f"returned fields that {model.__qualname__} does not have: {', '.join(unknown[:_SHOWN])}")
    try:
        refuse_costly(model, dict(made), by_name=True)
        return model.model_validate(dict(made), by_name=True)
    except ValidationError as error:
        raise TypeError(f"returned what does not fit {model.__qualname__}: {places_of(error)}") from None


def _why(error: Exception) -> str:
    """Return how a function failed. Of other errors' texts, only a KeyError's is shown, because it is a name and not a value."""
    if isinstance(error, ContextMergeError) or (isinstance(error, TypeError) and str(error).startswith("returned ")):
        return str(error)
    named = f" {error}" if isinstance(error, KeyError) else ""
    return f"raised {type(error).__name__}{named}"
