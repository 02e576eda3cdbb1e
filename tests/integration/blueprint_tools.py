"""Tools that the blueprints of tests name."""


def lookup(name: str) -> str:
    """Look a name up."""
    return f"{name} is known"
