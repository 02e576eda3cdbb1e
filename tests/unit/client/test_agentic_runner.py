"""What `run_agentic_loop_pipeline` refuses before it reaches for any service."""

import asyncio

import pytest

from flujo_client import run_agentic_loop_pipeline
from flujo_client.errors import ResumeError


def test_an_answer_for_no_run_begins_none():
    with pytest.raises(ResumeError, match="needs the run that asked"):
        asyncio.run(run_agentic_loop_pipeline("acme:pipeline", "goal", human_input="yes"))
