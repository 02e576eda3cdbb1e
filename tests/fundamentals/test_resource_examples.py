"""What the documents show of resources, redirects and validators does what they say."""

from examples.test_shipping import *  # noqa: F403 - these are tests, collected here
