"""`pip install flujo-worker[worker]` fits beside the versions that public products are installed with."""

import pytest

from tests.compat.pins import PRODUCTS, SHOWN, resolve

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]  # pip takes minutes where uv takes seconds


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_keeps_its_versions(product):
    found = resolve(product)
    assert not found.refusal
    kept = dict(pin.split("==") for pin in PRODUCTS[product]["pins"].split())
    assert {name: kept.get(name, version) for name, version in found.versions.items()} == found.versions
    assert [*found.versions] == [*SHOWN]
