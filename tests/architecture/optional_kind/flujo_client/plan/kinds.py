"""The spec of optional steps: a line for the module of this name."""

from typing import Final

from flujo_client.plan.kinds import KindSpec

OPTIONAL: Final = KindSpec(name="optional", yaml_name="optional", child="child")
