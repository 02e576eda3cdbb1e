"""Serialisation of values: strict with types, lenient for traces, packed for storage. Pure."""

from flujo_client.serial.custom import register_custom_deserializer, register_custom_serializer
from flujo_client.serial.encryption import cipher_in_use, header_of_key, use_cipher
from flujo_client.serial.fragments import held_at, items_of
from flujo_client.serial.lenient import safe_serialize
from flujo_client.serial.manifest import Manifest, digest_of, part_key, renewed, stored_apart
from flujo_client.serial.packed import Outline, Packed
from flujo_client.serial.resolve import MAIN, Resolver, importable, is_ours, reference
from flujo_client.serial.stored import stored, stored_safely
from flujo_client.serial.strict import decode, encode, is_plain_key
from flujo_client.serial.tree import Tree, canonical, digest, dumps, loads, storable_text
from flujo_client.serial.types_refused import refused_type

__all__ = ["MAIN", "Manifest", "Outline", "Packed", "Resolver", "Tree", "canonical", "cipher_in_use", "decode"]
__all__ += ["digest", "digest_of", "dumps", "encode", "header_of_key", "held_at", "importable", "is_ours"]
__all__ += ["is_plain_key", "items_of", "loads", "part_key", "reference", "refused_type", "renewed", "safe_serialize"]
__all__ += ["register_custom_deserializer", "register_custom_serializer", "storable_text", "stored", "stored_apart"]
__all__ += ["stored_safely", "use_cipher"]
