"""Records of code in the store in memory: versions, the former fields of context models, and the plans that a run has used."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from flujo_client.contract.code import CodeOnRecord, StepVersion, without_numbers
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.shared_rules import MAX_FORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from flujo_client.contract.code import CodeVersion
    from flujo_client.pipeline.context_info import Fields


class CodeInMemory(Tables):
    """A part of the port `Ledger`."""

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        with self._lock:
            known = self._context_fields.setdefault(model, {})
            known.setdefault(digest, fields)
            return [each for other, each in known.items() if other != digest]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        with self._lock:
            reference = self._references.get(fingerprint)
            plans = [self._plans[each] for each, its in self._references.items() if its == reference]
            mine = {each.context_model for each in plans if each.fingerprint == fingerprint}
            return frozenset(each.context_model for each in plans if each.context_model is not None) - mine

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        with self._lock:
            fingerprints: list[str] = []
            origin: str | None = run
            for _ in range(MAX_FORKS + 1):
                row = None if origin is None else self._runs.get(origin)
                if row is None:
                    break
                carried = [each for each in self._events if (each.run_id, each.name) == (origin, "run.carried_on")]
                fingerprints += [row.ticket.fingerprint, *(str(each.data["from"]) for each in reversed(carried))]
                origin = row.forked[0] if row.forked else None
            return [(each, self._plans[each].version) for each in fingerprints if each in self._plans]

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        with self._lock:
            for each in versions:
                if each.texts or each.digest not in self._code:
                    self._code[each.digest] = each

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        with self._lock:
            self.store_code(list(steps.values()))
            self._step_code.setdefault(fingerprint, {}).update({path: each.digest for path, each in steps.items()})

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        with self._lock:
            ended = [each for each in self._attempts_of(run) if each.ended_at is not None]
            run_code = {
                (without_numbers(each.key.address), each.key.step): self._code[each.code]
                for each in sorted(ended, key=attrgetter("ended_at"))
                if each.code is not None
            }
            steps = tuple(StepVersion(*place, version) for place, version in run_code.items())
            own = self._runs[run].ticket.fingerprint
            return CodeOnRecord(steps, self._code_of(own), self._code_of(fingerprint))

    def _code_of(self, fingerprint: str) -> dict[str, CodeVersion]:
        return {path: self._code[digest] for path, digest in self._step_code.get(fingerprint, {}).items()}

    def code(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        with self._lock:
            return {digest: self._code[digest] for digest in digests if digest in self._code}
