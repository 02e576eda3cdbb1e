"""What the test runner of click before 8.2 needs: it mixes stderr into stdout unless it is told not to, and knows no end of input."""

import functools

import click.testing
import pytest

IS_OLD = not hasattr(click.testing, "StreamMixer")
needs_end_of_input = pytest.mark.skipif(IS_OLD, reason="the test runner of this click knows no end of input")

if IS_OLD:
    runner = click.testing.CliRunner
    runner.__init__ = functools.partialmethod(runner.__init__, mix_stderr=False)
