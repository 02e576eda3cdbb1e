"""The tables of a pipeline's options and of judges' answers equal the code."""

import pytest
from test_documents import table, words

from flujo_client import Pipeline, PluginOutcome, ValidationResult

PAGE = "docs/reference/pipelines.md"


@pytest.mark.parametrize(
    ("heading", "columns", "names"),
    [
        ("Pipeline", 3, Pipeline.__dataclass_fields__),
        ("Plugins", 2, PluginOutcome.model_fields),
        ("Validators", 2, ValidationResult.model_fields),
    ],
)
def test_every_field_is_listed(heading, columns, names):
    rows = table(PAGE, columns=columns, heading=heading)
    assert [name for row in rows for name in words(row[0])] == list(names)
