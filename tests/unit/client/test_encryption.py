"""Values that are encrypted where they are stored and sent."""

import pytest
from pydantic import SecretStr

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.errors import SerializationError, SettingsError
from flujo_client.serial import Manifest, Packed, dumps, loads, part_key, use_cipher
from flujo_client.serial.packed import PARTS_ABOVE
from flujo_client.transport.encryption import AesGcm, encrypt_values

pytest.importorskip("cryptography")

OLD, NEW = ("old", b"the secret of last year: 32 bytes or more"), ("new", b"the secret of this year: 32 bytes or more")
MARK = "the patient's name"
SMALL, LARGE = {"name": MARK}, {"name": MARK, "text": "again " * 1000}


@pytest.fixture(autouse=True)
def plain_afterwards():
    yield
    use_cipher(None)


def written(tree):
    """A value as it is stored now, in a new object."""
    return bytes(Packed.of(tree))


@pytest.mark.parametrize("tree", [SMALL, LARGE])
def test_a_value_survives_the_encrypted_forms(tree):
    plain = Packed.of(tree)
    use_cipher(AesGcm([NEW]))
    packed = Packed.of(tree)
    for again in (Packed.from_bytes(bytes(packed)), Packed.from_wire(loads(dumps(packed.to_wire())))):
        assert (again.tree(), again.digest, again == plain) == (tree, plain.digest, True)
        assert bytes(again) == bytes(packed)


@pytest.mark.parametrize("tree", [SMALL, LARGE])
def test_nothing_of_it_is_readable(tree):
    use_cipher(AesGcm([NEW]))
    assert MARK.encode() not in written(tree)
    assert MARK not in str(Packed.of(tree).to_wire())
    assert written(tree) != written(tree)


def test_a_value_in_parts_shows_no_fragment():
    """Its manifest stays readable for the search of unused parts, which is SQL; its texts do not."""
    tree = {"name": MARK, "rows": [{"n": n, "name": MARK} for n in range(PARTS_ABOVE // 20)]}
    use_cipher(AesGcm([NEW]))
    packed = Packed.of(tree)
    manifest = Manifest.of(packed)
    assert packed.parts
    assert manifest.parts
    assert MARK.encode() not in bytes(manifest)
    assert all(MARK.encode() not in bytes(part) for part in packed.parts)
    parts = {part_key(part): Packed.from_bytes(bytes(part)) for part in packed.parts}
    assert Manifest.read(packed.digest, bytes(manifest)).value(parts).tree() == tree
    assert Manifest.read(packed.digest, bytes(manifest)).parts == manifest.parts


def test_old_keys_are_read_and_the_first_writes():
    use_cipher(AesGcm([OLD]))
    old = written(SMALL)
    use_cipher(AesGcm([NEW, OLD]))
    assert Packed.from_bytes(old).tree() == SMALL
    assert written(SMALL).startswith(b"e\x03new")


def test_plain_values_from_before_are_read():
    plain = written(LARGE)
    use_cipher(AesGcm([NEW]))
    assert Packed.from_bytes(plain).tree() == LARGE


@pytest.mark.parametrize("cipher", [None, AesGcm([OLD])])
def test_a_missing_key_is_named(cipher):
    use_cipher(AesGcm([NEW]))
    stored = written(SMALL)
    use_cipher(cipher)
    with pytest.raises(SerializationError, match="encrypted with the key 'new', which `value_keys` lacks here"):
        Packed.from_bytes(stored).tree()


def test_any_changed_byte_is_refused():
    use_cipher(AesGcm([NEW]))
    stored = written(SMALL)
    for place in range(1, len(stored)):
        changed = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
        with pytest.raises(SerializationError):
            Packed.from_bytes(changed).tree()
    for length in range(1, len(stored)):
        with pytest.raises(SerializationError):
            Packed.from_bytes(stored[:length]).tree()


def test_an_id_with_another_secret_is_refused():
    use_cipher(AesGcm([NEW]))
    stored = written(SMALL)
    use_cipher(AesGcm([("new", OLD[1])]))
    with pytest.raises(SerializationError, match="another secret than that of the key 'new'"):
        Packed.from_bytes(stored).tree()


def settings(*keys):
    return Settings(value_keys={name: SecretStr(secret.decode()) for name, secret in keys})


def test_a_process_has_one_set_of_keys():
    encrypt_values(settings(NEW, OLD))
    encrypt_values(settings())
    encrypt_values(settings(NEW, OLD))
    with pytest.raises(SettingsError, match="other `value_keys`"):
        encrypt_values(settings(OLD, NEW))


def test_without_keys_nothing_is_encrypted():
    encrypt_values(settings())
    assert written(SMALL).startswith(b"j")


def test_short_secrets_are_refused():
    with pytest.raises(SettingsError, match="at least 32 bytes"):
        ConfigManager(environ={"FLUJO_VALUE_KEYS": "a:0123456789abcdef"}).settings()
