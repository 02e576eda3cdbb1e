"""Helpers that tests in several folders share: builders of values, services, workers, and stand-ins for remote services."""
