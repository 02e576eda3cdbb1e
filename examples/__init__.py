"""The code that the documents show. Each module is run or imported by `tests/fundamentals/test_examples.py`."""
