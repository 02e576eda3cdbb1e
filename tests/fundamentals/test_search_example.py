"""The tree search of the reference does what its page says."""

from tests.support.page_module import page_module

voucher = page_module("reference/pipelines.md", "voucher.py")


def test_a_voucher_is_spent_to_the_last_coin(engine):
    output = engine.run(voucher.pipeline, 18).output
    assert (output.path, output.score, output.reason) == (["mead", "soap", "soap"], 1.0, "18 of 18")


def test_a_voucher_that_nothing_fits_is_told(engine):
    result = engine.run(voucher.pipeline, 5)
    assert "the best of 2 has 0.8" in result.step_history[-1].feedback
