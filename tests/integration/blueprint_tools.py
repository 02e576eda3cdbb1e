"""Tools that the blueprints of tests name."""

from pydantic_ai import Tool


def lookup(name: str) -> str:
    """Look a name up."""
    return f"{name} is known"


finder = Tool(lookup, name="find_person", description="Finds a person.")
