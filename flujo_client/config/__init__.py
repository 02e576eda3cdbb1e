"""Settings: their models, where they come from, and the errors about them."""
