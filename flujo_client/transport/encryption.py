"""Encryption of values by AES-256-GCM (ADR 48): in Postgres and in messages, if `value_keys` are set.

Each value has its own key, derived from the secret and 24 random bytes, so that a secret never has to be replaced because of the number of
values.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from flujo_client.errors import KeyMissing, SettingsError
from flujo_client.serial import cipher_in_use, use_cipher

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings

_SALT: Final = 24
_NONCE: Final = bytes(12)
"""Always the same: no key encrypts two values."""
_PURPOSE: Final = b"flujo.value"


def encrypt_values(settings: Settings) -> None:
    """Encrypt this process's values with the settings' `value_keys`; without any, do nothing.

    Raises SettingsError if `cryptography` is missing, or this process encrypts with other keys already.
    """
    keys = settings.encryption_keys()
    if not keys:
        return
    present, wanted = cipher_in_use(), AesGcm(keys)
    if present is None:
        use_cipher(wanted)
    elif present != wanted:
        what = "this process encrypts values with other `value_keys` already"
        raise SettingsError(what, suggestion="use the same `value_keys` for all clients of a process")


class AesGcm:
    """Encrypts with the first of several keys, pairs of id and secret, and decrypts with any of them."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            what = "`value_keys` need the library cryptography"
            raise SettingsError(what, suggestion="pip install 'flujo-worker[encryption]'", cause=error) from error
        self._aes, self._secrets = AESGCM, dict(keys)
        self.key_ids = tuple(self._secrets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AesGcm) and [*self._secrets.items()] == [*other._secrets.items()]

    __hash__ = None  # type: ignore[assignment]  # it is compared, and in no set

    def encrypt(self, plain: bytes, header: bytes) -> bytes:
        """Encrypt with the first key; the header is authenticated too."""
        salt = os.urandom(_SALT)
        return b"".join((salt, self._key(self.key_ids[0], salt).encrypt(_NONCE, plain, header)))

    def decrypt(self, key_id: str, body: bytes, header: bytes) -> bytes:
        """Decrypt. Raises KeyMissing for what was changed, or was encrypted with another secret of this id."""
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._key(key_id, body[:_SALT]).decrypt(_NONCE, body[_SALT:], header)
        except InvalidTag as error:
            what = f"changed since it was encrypted, or encrypted with another secret than that of the key '{key_id}'"
            raise KeyMissing(what, key_id=key_id, cause=error) from error
        return plain

    def _key(self, key_id: str, salt: bytes) -> Any:
        return self._aes(hmac.digest(self._secrets[key_id], _PURPOSE + salt, "sha256"))
