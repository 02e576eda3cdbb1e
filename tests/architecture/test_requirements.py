"""Every requirement has a test that names its id, or a reason, and no id points nowhere."""

from requirements_page import ROOT, SENTENCES, WITHOUT_TEST, checked_text, files_by_id, named_in, page


def test_ids_in_tests_are_known():
    assert {each: paths for each, paths in files_by_id().items() if each not in SENTENCES} == {}


def test_every_id_has_a_test_or_the_reason_why_not():
    assert set(SENTENCES) == set(files_by_id()) | set(WITHOUT_TEST)
    assert set(files_by_id()).isdisjoint(WITHOUT_TEST)


def test_products_name_no_ids():
    """Ids belong into tests; code says what it does."""
    texts = (path.read_text(encoding="utf-8") for path in ROOT.glob("flujo_*/**/*.py"))
    assert {each for text in texts for each in named_in(text)} == set()


def test_the_page_lists_every_id_once():
    assert [row.split(" | ")[0][2:] for row in page().splitlines() if row.startswith("| ") and named_in(row[:10])] == [
        *SENTENCES
    ]


def test_spans_name_all_their_ids():
    a, b, c = (f"{'M'}-{number}" for number in ("033", "034", "035"))
    assert named_in(f"{a}…{c}") == named_in(f"{a} to {c}") == {a, b, c}


def test_what_make_check_does_not_run_does_not_count(tmp_path):
    a, b = (f"{'M'}-{number}" for number in ("033", "034"))
    module = tmp_path / "test_it.py"
    chaotic = f'@pytest.mark.chaos\ndef test_a():\n    assert "{a}"\n'
    module.write_text(f'{chaotic}\n\ndef test_b():\n    assert "{b}"\n')
    assert named_in(checked_text(module)) == {b}
    module.write_text(f'pytestmark = [pytest.mark.release]\n\n\ndef test_a():\n    assert "{a}"\n')
    assert checked_text(module) == ""
