"""Take the schemas of the kinds that `deploy/kubernetes` has out of Kubernetes' own OpenAPI document, as strict JSON Schemas.

    python tests/architecture/kubernetes_schemas.py DEFINITIONS > tests/golden/kubernetes_1_34.json

DEFINITIONS is `v1.34.0-local-strict/_definitions.json` of the wheel `kubernetes-validate` (Apache-2.0, as Kubernetes itself). What only
describes a field is left out.
"""

import json
import sys
from pathlib import Path
from typing import Any

KINDS = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Job": "io.k8s.api.batch.v1.Job",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}
PREFIX = "#/definitions/"


def schemas(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions that the kinds lead to."""
    found: dict[str, Any] = {}
    wanted = list(KINDS.values())
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = bare(definitions[name])
            wanted += [each.rpartition("/")[2] for each in references(found[name])]
    return dict(sorted(found.items()))


def bare(value: Any, *, in_properties: bool = False) -> Any:
    """Return a schema without descriptions, its references inside the document."""
    if isinstance(value, list):
        return [bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: bare(each, in_properties=key == "properties")
        for key, each in value.items()
        if in_properties or not (key in ("description", "$schema") or key.startswith("x-kubernetes"))
    }
    if isinstance(kept.get("$ref"), str):
        kept["$ref"] = PREFIX + kept["$ref"].rpartition("/")[2]
    return kept


def references(value: Any) -> list[str]:
    """List the references of a schema."""
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for each in value.values() for found in references(each)]


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({"definitions": schemas(given["$defs"])}, separators=(",", ":")))
