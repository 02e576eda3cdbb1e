"""Remove secrets from a text that comes in pieces: what may be the beginning of one is held back until more has come.

In: the pieces, in order. Out: the same text, later, as `redact` shows the whole.
"""

from __future__ import annotations

import re
from typing import Final

from flujo_client.patterns import compiled
from flujo_client.redact import has_signs, redact

MOST_HELD: Final = 8192
"""Characters that are held back at most: a private key has fewer."""
_BEFORE: Final = 160
"""Characters of the text before that are looked at again: a name may be there whose value comes now."""
_PROBES: Final = ("a1b2c3d4e5f6g7h8i9", 'a" ', "a' ", "a@b", ".a1b2c3d4e5f6g7h8")
"""Texts that may come next. Where one changes how the text until now is shown, or is hidden itself, a secret may be unfinished."""
_WORD: Final = compiled(r"[\w.~+/=-]{1,4096}\Z")
_OF_PROSE: Final = re.compile(r"[A-Z]?[a-z]*|[^\W\d_]*[^\x00-\x7f][^\W\d_]*")
"""Words that are not the beginning of a key."""


class LiveRedaction:
    """Redacts one text."""

    def __init__(self) -> None:
        self._before = self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece; return what can be shown by now."""
        self._held += piece
        word = _WORD.search(self._before + self._held)
        cuts = [len(self._held)] if word is None or _OF_PROSE.fullmatch(word[0]) else []
        cuts += [] if word is None else [word.start() - len(self._before)]
        for cut in cuts:
            if cut > 0 and self._is_whole(self._before + self._held[:cut]):
                return self._show(cut)
        return self.rest() if len(self._held) > MOST_HELD else ""

    def rest(self) -> str:
        """Return what was held back: the text ends here."""
        return self._show(len(self._held))

    def _show(self, cut: int) -> str:
        now, self._held = self._held[:cut], self._held[cut:]
        known, whole = redact(self._before), redact(self._before + now)
        self._before = (self._before + now)[-_BEFORE:]
        return whole[_common(known, whole) :]

    def _is_whole(self, text: str) -> bool:
        """Return whether a text cannot end within a secret."""
        if not has_signs(text):
            return True
        shown = redact(text)
        return all(redact(text + each) == shown + each for each in _PROBES)


def _common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
