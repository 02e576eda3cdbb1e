"""The async client takes the sync client's options, and a type checker knows them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from mypy import api

from flujo_client.api import options
from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_a_type_checker_accepts_and_refuses_what_it_should():
    """mypy reports exactly the lines that are marked as wrong."""
    source = HERE / "async_client.py"
    marks = {
        (number, found[1])
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if (found := re.search(r"# wrong: ([a-z-]+)", line))
    }

    out, err, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(source)])

    assert not err
    assert {(int(line), code) for line, code in re.findall(r":(\d+): error: .*\[([a-z-]+)\]", out)} == marks, out


@pytest.mark.parametrize(
    ("method", "named"),
    [
        (FlujoClient.enqueue, options.EnqueueOptions),
        (FlujoClient.list_runs, options.RunFilters),
        (FlujoClient.approvals, options.ApprovalFilters),
        (RunHandle.resume, options.AnswerOptions),
        (RunHandle.retry, options.RetryOptions),
    ],
)
def test_options_are_those_of_the_sync_method(method, named):
    keywords = {
        name: parameter.annotation
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert {name: kind.__forward_arg__ for name, kind in named.__annotations__.items()} == keywords
