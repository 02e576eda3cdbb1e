"""Records of code in memory: plans, versions, and the former fields of context models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from flujo_client.contract.code import CodeOnRecord, CodeVersion, StepVersion, without_numbers
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_worker.store.memory.tables import InMemory
from flujo_worker.store.shared_rules import MAX_FORKS


class CodeInMemory(InMemory):
    """The port `CodeStore`."""

    def plan(self, fingerprint: str) -> Plan | None:
        return self._t.plans.get(fingerprint)

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        known = self._t.context_fields.setdefault(model, {})
        known.setdefault(digest, fields)
        return [each for other, each in known.items() if other != digest]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        reference = self._t.references.get(fingerprint)
        plans = [self._t.plans[each] for each, its in self._t.references.items() if its == reference]
        mine = {each.context_model for each in plans if each.fingerprint == fingerprint}
        return frozenset(each.context_model for each in plans if each.context_model is not None) - mine

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        fingerprints: list[str] = []
        origin: str | None = run
        for _ in range(MAX_FORKS + 1):
            row = None if origin is None else self._t.runs.get(origin)
            if row is None:
                break
            carried = [each for each in self._t.events if (each.run_id, each.name) == (origin, "run.carried_on")]
            fingerprints += [row.ticket.fingerprint, *(str(each.data["from"]) for each in reversed(carried))]
            origin = row.forked[0] if row.forked else None
        return [(each, self._t.plans[each].version) for each in fingerprints if each in self._t.plans]

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        for each in versions:
            if each.texts or each.digest not in self._t.code:
                self._t.code[each.digest] = each

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        self.store_code(list(steps.values()))
        self._t.step_code.setdefault(fingerprint, {}).update({path: each.digest for path, each in steps.items()})

    def versions(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        return {digest: self._t.code[digest] for digest in digests if digest in self._t.code}

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        started = self._t.clock() if worker is None else self._t.started.get(worker, self._t.clock())
        self._t.record_plan(reference, plan)
        self._t.since[plan.fingerprint] = max(started, self._t.since.get(plan.fingerprint, started))

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:  # noqa: ARG002 - nothing here reads a build
        self._t.loaded.setdefault(worker, set()).add(fingerprint)

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        ended = [each for each in self._t.attempts_of(run) if each.ended_at is not None]
        run_code = {
            (without_numbers(each.key.address), each.key.step): self._t.code[each.code]
            for each in sorted(ended, key=attrgetter("ended_at"))
            if each.code is not None
        }
        steps = tuple(StepVersion(*place, version) for place, version in run_code.items())
        own = self._t.runs[run].ticket.fingerprint
        return CodeOnRecord(steps, self._code_of(own), self._code_of(fingerprint))

    def _code_of(self, fingerprint: str) -> dict[str, CodeVersion]:
        return {path: self._t.code[digest] for path, digest in self._t.step_code.get(fingerprint, {}).items()}
