"""The place where a process sets how packed values are encrypted, if it does (ADR 48). It must not encrypt itself: keys and chance are above.

An encrypted value is `e`, the length of the key's id in one byte, the id, and what the cipher made of the stored form.
"""

from __future__ import annotations

from typing import Final, Protocol

from flujo_client.errors import KeyMissing

FORM: Final = b"e"


class Cipher(Protocol):
    """Encrypts stored values, and decrypts what any key of this process has encrypted."""

    key_ids: tuple[str, ...]

    def encrypt(self, plain: bytes, header: bytes) -> bytes:
        """Encrypt with the first key; the header is authenticated too."""

    def decrypt(self, key_id: str, body: bytes, header: bytes) -> bytes:
        """Decrypt. Raises KeyMissing for what was changed, or was encrypted with another secret."""


_cipher: Cipher | None = None


def use_cipher(cipher: Cipher | None) -> None:
    """Encrypt the values that this process packs from now on; None: no more."""
    global _cipher  # noqa: PLW0603 - as registered serializers, it is the process's
    _cipher = cipher


def cipher_in_use() -> Cipher | None:
    """Return what encrypts this process's values."""
    return _cipher


def encrypted(stored: bytes) -> bytes:
    """Return the form to store: encrypted if this process has keys."""
    if _cipher is None:
        return stored
    header = header_of_key(_cipher.key_ids[0])
    return header + _cipher.encrypt(stored, header)


def is_renewed(stored: bytes) -> bool:
    """Return whether a stored form is what this process would write: encrypted with its first key, a reference, or plain without keys."""
    return stored[:1] == b"#" or stored.startswith(b"" if _cipher is None else header_of_key(_cipher.key_ids[0]))


def decrypted(stored: bytes) -> bytes:
    """Return the form below the encryption. Raises KeyMissing if this process lacks the key, or the value was changed."""
    if stored[:1] != FORM:
        return stored
    key_id, header = require_key(stored)
    return _key_of(key_id).decrypt(key_id, stored[len(header) :], header)


def require_key(stored: bytes) -> tuple[str, bytes]:
    """Return the id of an encrypted form's key, and the header. Raises KeyMissing if this process lacks that key."""
    header = stored[: 2 + (stored[1] if len(stored) > 1 else 0)]
    key_id = header[2:].decode("ascii", "replace")
    _key_of(key_id)
    return key_id, header


def _key_of(key_id: str) -> Cipher:
    if _cipher is None or key_id not in _cipher.key_ids:
        what = f"encrypted with the key '{key_id}', which `value_keys` lacks here"
        raise KeyMissing(what, key_id=key_id, suggestion="add that key to `value_keys`")
    return _cipher


def header_of_key(key_id: str) -> bytes:
    """Return what each form begins with that is encrypted with this key."""
    return FORM + bytes([len(key_id)]) + key_id.encode("ascii")
