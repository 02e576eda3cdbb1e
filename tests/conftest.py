"""The fixtures every test may ask for. pytest puts this folder on the path, so `services` is tests/services.py."""

pytest_plugins = ["services"]
