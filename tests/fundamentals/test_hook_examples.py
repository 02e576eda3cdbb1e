"""What the documents show of hooks does what they say."""

from examples.test_payout import *  # noqa: F403 - these are tests, collected here
