"""Every kind of step in blueprints, a module each, named after its spec: its keys, how it is built and how it is written."""

from dataclasses import replace
from importlib import import_module

from flujo_client.blueprint.kind import KINDS
from flujo_client.plan.kinds import YAML_KINDS

for _word, _spec in YAML_KINDS.items():
    KINDS[_word] = replace(import_module(f"{__name__}.{_spec.name}").KIND, spec=_spec)
