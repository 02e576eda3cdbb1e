"""What holds for the shipping example: resources, a plugin that redirects, a validator."""

import pytest

from examples import shipping
from flujo_worker.testing import LocalEngine


@pytest.mark.parametrize(("country", "price"), [("AT", 4.5), ("FR", 9.5)])
def test_who_knows_the_tariff_is_asked(country: str, price: float) -> None:
    with LocalEngine() as engine:
        assert engine.run(shipping.pipeline, country).output == price


def test_what_is_too_dear_is_refused() -> None:
    with LocalEngine() as engine:
        result = engine.run(shipping.pipeline, "AQ")
    assert (
        result.step_history[0].feedback == "Validation failed with ValidationError: affordable: 80.0 a kilo is too dear"
    )
