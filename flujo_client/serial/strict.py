"""Convert values to trees and back, exactly or not at all.

Plain JSON encodes to itself, and a subtree that is all plain is returned as the same object, not a copy: `dumps` is
what makes the copy. Everything else becomes `{"$": tag, ...}`; a dict that could be taken for one is written as a
list of pairs. A value that could not be restored exactly is rejected with its path. Nothing here reads attributes of a value
whose type has no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import orjson

from flujo_client.errors import CodeMissing, SerializationError
from flujo_client.serial import names
from flujo_client.serial.custom import deserializer_for, serializer_for
from flujo_client.serial.rule import EncodingRefused, EncodingRule, Entries, step_to
from flujo_client.serial.rules import BY_TAG, MAP, SETS, reference_of, rule_of
from flujo_client.serial.tree import Tree, is_storable_text

MAX_DEPTH: Final = 64
_TAG: Final = "$"
_CUSTOM: Final = "custom"
_CONTAINERS: Final = frozenset({dict, list})
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**64 - 1

Resolve = Callable[[str], Any]


def encode(value: Any, *, path: str = "value", depth: int = 0) -> Tree:
    """Return the tree of a value, from which `decode` rebuilds it with every type.

    Args:
        value: plain JSON, the types of `rules`, registered classes, and any nesting of them up to 64 deep.
        path: what to call the value in an error.
        depth: how many levels deep the tree will be in another.

    Raises:
        SerializationError: naming the place inside the value that cannot be serialised, and a suggestion.
    """
    try:
        return _encode(value, depth)
    except EncodingRefused as refused:
        error = refused.as_error(path)
    raise error


def decode(tree: Tree, *, resolve: Resolve, path: str = "value") -> Any:
    """Rebuild the value from its tree; the inverse of `encode`.

    No validator, constructor or post-init runs on models and dataclasses. Fields that were not sent get their
    default; fields the class no longer has are dropped, or refused where the model forbids extra ones.

    Args:
        tree: what `encode` gave, perhaps after a journey; plain subtrees are reused, not copied.
        resolve: gives the class for a reference and refuses what is not allowed (see `Resolver`).
        path: what to call the value in an error.

    Raises:
        SerializationError: naming the place and the class or tag that cannot be rebuilt.
    """
    try:
        return _decode(tree, resolve)
    except EncodingRefused as refused:
        error = refused.as_error(path)
    except RecursionError:
        error = SerializationError("nested deeper than any value that Flujo writes", path=path)
    raise error


# --- out -------------------------------------------------------------------------------------------------------------


def _encode(value: Any, depth: int) -> Tree:
    kind = type(value)
    if kind is str:
        return value if is_storable_text(value) else _encode_other(value, kind, depth)
    if kind is int:
        return value if _SMALLEST <= value <= _LARGEST else _encode_other(value, kind, depth)
    if kind is dict or kind is list:
        return _encode_container(value, kind, depth)
    if value is None or kind is bool or (kind is float and isfinite(value)):
        return value
    return _encode_other(value, kind, depth)


def is_plain_key(key: str) -> bool:
    """Return whether a mapping's key is written as it is."""
    return key != _TAG and is_storable_text(key)


def _encode_container(value: Any, kind: type, depth: int) -> Tree:
    _check_depth(depth)
    out, key = value, None
    is_dict = kind is dict
    try:
        for key, item in value.items() if is_dict else enumerate(value):
            if is_dict and (type(key) is not str or not (key.isidentifier() or is_plain_key(key))):
                break
            if type(item) is str and item.isascii() and "\0" not in item:
                continue  # most leaves are such texts; a call for each would double the time
            tree = _encode(item, depth + 1)
            if tree is not item:
                if out is value:
                    out = value.copy()
                out[key] = tree
        else:
            return out
    except EncodingRefused as refused:
        refused.past(value, step_to(key))
        raise
    return _encode_map(value, depth)


def _encode_map(value: dict[Any, Any], depth: int) -> Tree:
    pairs = []
    for key, item in value.items():
        try:
            pairs.append([_encode(key, depth + 1), _encode(item, depth + 1)])
        except EncodingRefused as refused:
            refused.past(value, step_to(key))
            raise
    return {_TAG: MAP, "v": pairs}


def _encode_other(value: Any, kind: type, depth: int) -> Tree:
    _check_depth(depth)
    try:
        if custom := serializer_for(kind):
            name, serialize = custom
            return {_TAG: _CUSTOM, "c": name, "v": _encode(_apart(serialize, value), depth + 1)}
        rule = rule_of(kind)
        node: dict[str, Tree] = {_TAG: rule.tag}
        if rule.owns:
            node["c"] = rule.named(value) if rule.named else reference_of(kind)
        for name, part in _apart(rule.apart, value).items():
            node[name] = _encode(part, depth)
        if kind in SETS:
            node["v"].sort(key=orjson.dumps)  # a set's own order differs between processes
    except EncodingRefused as refused:
        refused.past(value)
        raise
    return node


def _apart(take: Callable[[Any], Any], value: Any) -> Any:
    try:
        return take(value)
    except EncodingRefused:
        raise
    except Exception as error:  # users' serializers and properties run here
        raise EncodingRefused(f"cannot be serialized: {error}") from error


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise EncodingRefused(f"nested more than {MAX_DEPTH} levels deep", "flatten the value", too_deep=True)


# --- back ------------------------------------------------------------------------------------------------------------


def _decode(tree: Tree, resolve: Resolve) -> Any:
    kind = type(tree)
    if kind not in _CONTAINERS:
        return tree
    if kind is dict and _TAG in tree:
        return _decode_tagged(tree, resolve)
    out = tree
    key: str | int = ""
    try:
        for key, item in tree.items() if kind is dict else enumerate(tree):
            if type(item) not in _CONTAINERS:
                continue  # most are leaves; a call for each would double the time
            value = _decode(item, resolve)
            if value is not item:
                if out is tree:
                    out = tree.copy()
                out[key] = value
    except EncodingRefused as refused:
        refused.past(tree, step_to(key))
        raise
    return out


def _decode_tagged(tree: dict[str, Tree], resolve: Resolve) -> Any:
    tag, ref = tree[_TAG], tree.get("c")
    entries = {
        name: _decode(item, resolve) if type(item) in _CONTAINERS else item
        for name, item in tree.items()
        if name not in (_TAG, "c")
    }
    try:
        return _made(tag, ref, entries, resolve)
    except EncodingRefused:
        raise
    except Exception as error:  # the payload is foreign, so any error here is about it
        raise EncodingRefused(f"not a valid {tag} ({ref or 'builtin'}): {type(error).__name__}: {error}") from error


def _made(tag: Any, ref: Any, entries: Entries, resolve: Resolve) -> Any:
    """Make a tagged value from its entries."""
    if tag == _CUSTOM:
        if func := deserializer_for(ref):
            return func(entries["v"])
        raise _missing(f"no deserializer for {ref!r:.80}", "call register_custom_deserializer() in this process too")
    if (rule := BY_TAG.get(str(tag))) is None:
        raise _missing(f"unknown tag {tag!r:.80}", "deploy the same version here")
    return rule.together(_class(rule, ref, resolve), entries)


def _class(rule: EncodingRule, ref: Any, resolve: Resolve) -> Any:
    """Resolve the class, and see that it is of the kind the tag says: a reference must not name any callable."""
    if rule.owns is None:
        return None
    if not isinstance(ref, str):
        raise EncodingRefused(f"a {rule.tag} without the reference of its class")
    try:
        cls = names.find(ref, resolve) if rule.named else resolve(ref)
    except SerializationError as error:
        raise EncodingRefused(error.message, error.suggestion) from error
    if not (isinstance(cls, type) or rule.named) or not rule.owns(cls):
        raise EncodingRefused(f"{ref!r} does not name the class of a {rule.tag}")
    return cls


def _missing(message: str, suggestion: str) -> EncodingRefused:
    refused = EncodingRefused(message, suggestion)
    refused.__cause__ = CodeMissing(message)
    return refused
