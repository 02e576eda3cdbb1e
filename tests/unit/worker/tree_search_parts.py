"""Who rates what the blueprint of a tree search proposes."""


def rate(text: str) -> float:
    return {"a7": 0.3}.get(text, 0.9)
