"""Make the contexts at a join fit the present model, if it has changed since the fan-out began.

A branch's change leads from the stored initial context of the fan-out to the branch's final context, of any version of the model. If either
is migrated, the change is computed again between the two. In: the arguments of a join. Out: the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.pipeline import model_name
from flujo_client.serial import Packed, encode
from flujo_worker.domain.context_change import fields_of, is_of
from flujo_worker.domain.patch import apply, diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from flujo_client.contract.envelope import RunHeader
    from flujo_worker.changed_code.code_registry import LoadedPipeline
    from flujo_worker.changed_code.context_migrations import ContextMigrations, MigratedContext

    Values = tuple[Packed | None, ...]


def at_join(migrations: ContextMigrations, entry: LoadedPipeline, ticket: RunHeader, values: Values) -> Values:
    """Return the arguments of a join (`contexts.join`) as if the present model had existed when the fan-out began.

    Raises ContextMisfit: a context cannot be read, and no function of the pipeline makes it fit.
    """
    model, (sequence, start, *branches) = entry.pipeline.context_model, values
    if model is None or sequence is None or start is None:
        return values
    if not is_of(start.tree(), model_name(model) or "", *migrations.change(entry, model).models):
        return values
    if any(_names_others(patch, model) for patch in branches[::2]):
        migrations.forget()
    if not migrations.change(entry, model).has_history:
        return values
    join = _Join(migrations, entry, ticket, model, start)
    branches[::2] = join.changes(branches[::2])
    joined = join.fit(sequence), join.began, *branches
    if join.found:
        join.found[0].emit()
    return joined


class _Join:
    """The contexts of one join: `start` is the stored context with which the branches began, `began` the same with the present model.

    `found` are the migrations that were made.
    """

    def __init__(
        self,
        migrations: ContextMigrations,
        entry: LoadedPipeline,
        ticket: RunHeader,
        model: type[BaseModel],
        start: Packed,
    ) -> None:
        self._migrations, self._entry, self._ticket, self._model = migrations, entry, ticket, model
        self.found: list[MigratedContext] = []
        self._defaults: Mapping[str, Any] = {}
        self.start, self.began = start, self.fit(start)
        self._last_wins = self._drawn()
        self._defaults = fields_of(self.began.tree())

    def fit(self, packed: Packed) -> Packed:
        """Return a context of the present model, with all of its fields."""
        migrated = self._migrations.migrate(self._entry, self._ticket, packed)
        if migrated is None:
            return self._completed(packed)
        self.found.append(migrated)
        return migrated.context

    def changes(self, patches: Sequence[Packed | None]) -> list[Packed | None]:
        """Return what each branch changed, of the present model."""
        taken, others = list(patches), dict[str, Any]()
        for place, patch in reversed(list(enumerate(patches))):
            if patch is None:
                continue
            end = Packed.of(apply(self.start.tree(), patch.tree()), like=(self.start, patch))
            ended = self.fit(end)
            if self.began is not self.start or ended is not end:
                taken[place] = self._change(ended, others)
                others = {name: self._defaults[name] for name in self._last_wins}
        return taken

    def _change(self, ended: Packed, others: Mapping[str, Any]) -> Packed | None:
        """Return what leads to the context that a branch ended with, `others` of its fields replaced."""
        tree = ended.tree()
        tree["v"].update(others)
        changed = diff(self.began.tree(), tree)
        return None if changed is None else Packed.of(changed, like=(ended,))

    def _completed(self, packed: Packed) -> Packed:
        """Add the fields that the model got since a context was written, with one default for all contexts."""
        tree = packed.tree()
        if self._model.model_fields.keys() <= tree["v"].keys():
            return packed
        missing = self._model.model_fields.keys() - fields_of(tree).keys()
        tree = encode(self._migrations.live(tree), path="context")
        tree["v"].update({name: self._defaults[name] for name in missing & self._defaults.keys()})
        return Packed.of(tree, like=(packed,))

    def _drawn(self) -> list[str]:
        """Return the added fields whose default differs each time, such as an id: the last branch's value wins."""
        known = fields_of(self.start.tree())
        made = [name for name, each in self._model.model_fields.items() if each.default_factory and name not in known]
        once, again = (fields_of(self.fit(self.start).tree()) if made else {} for _ in range(2))
        return [name for name in made if once.get(name) != again.get(name)]


def _names_others(patch: Packed | None, model: type[BaseModel]) -> bool:
    """Return whether a branch changed fields that its context's model does not have here."""
    changed = None if patch is None else patch.tree()
    if changed is None or changed[0] != "fields":
        return False
    return not changed[1].get("v", {}).keys() <= model.model_fields.keys()
