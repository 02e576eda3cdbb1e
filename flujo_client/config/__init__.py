"""Settings: their models, their sources, and the errors about them."""
