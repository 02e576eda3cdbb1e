"""Rules for field types of pydantic and for containers, numbers and addresses of the standard library.

A type of a library is known by its tag alone: reading one imports nothing, and it needs no permission. In and out: as `rules` says.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from types import FunctionType
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from pydantic import ByteSize, NameEmail, Secret, SecretBytes, SecretStr, networks
from pydantic.networks import AnyUrl, PostgresDsn
from pydantic.types import PaymentCardNumber
from pydantic_core import MultiHostUrl, TzInfo, Url

from flujo_client.errors import SerializationError
from flujo_client.serial import names
from flujo_client.serial.resolve import reference
from flujo_client.serial.rule import EncodingRefused, EncodingRule, Entries, simple

# --- time zones ------------------------------------------------------------------------------------------------------


def zone_apart(zone: dt.tzinfo | None) -> Any:
    """Write a time zone: a name of the zone database, or [offset] or [offset, name]."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        return list(zone.__getinitargs__())  # type: ignore[attr-defined]  # pickle's own way in; typeshed omits it
    if type(zone) is TzInfo:
        return [zone.utcoffset(None)]
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    what = f"a time zone of type {type(zone).__qualname__} cannot be serialized"
    way_out = "use datetime.timezone or zoneinfo.ZoneInfo, or convert the time with .astimezone(datetime.UTC)"
    raise EncodingRefused(what, way_out)


def zone_together(written: Any) -> dt.tzinfo | None:
    """Read a time zone that `zone_apart` wrote."""
    if written is None:
        return None
    return ZoneInfo(written) if isinstance(written, str) else dt.timezone(*written)


# --- containers ------------------------------------------------------------------------------------------------------


def _is_factory(found: Any) -> bool:
    """Return whether a reference names something that a defaultdict may call: a class, or a function written in Python."""
    return found is None or isinstance(found, type | FunctionType)


def _factory_reference(value: defaultdict[Any, Any]) -> str:
    factory: Any = value.default_factory
    try:
        return names.name_of(factory) or reference(factory)
    except SerializationError as error:
        what = f"a defaultdict's factory must be importable: {error.message}"
        raise EncodingRefused(what, "use a class such as list, or a function at the top level of a module") from None


# --- pydantic's ------------------------------------------------------------------------------------------------------


def _core_url(core: Any, text: str) -> Any:
    url = core(text)
    return url if str(url) == text else core(text, preserve_empty_path=True)


def _url_apart(value: Any) -> Entries:
    if vars(value).keys() != {"_url"}:
        raise EncodingRefused(f"a {type(value).__qualname__} with attributes of its own cannot be serialized")
    return {"v": str(value)}


def _url(cls: Any, entries: Entries) -> Any:
    value = cls.__new__(cls)
    # Past the constructor, whose constraints could alter or refuse what was sent.
    value._url = _core_url(MultiHostUrl if issubclass(cls, _MANY_HOSTS) else Url, entries["v"])  # noqa: SLF001
    return value


_ONE_HOST, _MANY_HOSTS = cast("tuple[type, type]", (AnyUrl.__base__, PostgresDsn.__base__))
URLS: Final = (_ONE_HOST, _MANY_HOSTS, Url, MultiHostUrl)


def is_url(cls: type) -> bool:
    """Return whether a class is pydantic's base of URLs, or is derived from it."""
    return issubclass(cls, (_ONE_HOST, _MANY_HOSTS))


def _url_of(cls: type) -> EncodingRule:
    return EncodingRule(cls.__name__, _url_apart, lambda _, entries: _url(cls, entries))


def _card(text: str) -> PaymentCardNumber:
    card = str.__new__(PaymentCardNumber, text)
    PaymentCardNumber.__init__(card, text)  # not by calling the class, which warns that it is deprecated
    return card


SECRETS: Final = (SecretStr, SecretBytes, Secret)


def refuse_secret(kind: type) -> None:
    """Raise EncodingRefused for a class of secrets."""
    if issubclass(kind, SECRETS):
        raise EncodingRefused(
            f"a {kind.__name__} is refused on purpose: inputs, outputs and contexts are stored",
            "read the secret in the step that needs it, from its resources or environment;"
            " to store it all the same, call register_custom_serializer()",
        )


# --- the tables ------------------------------------------------------------------------------------------------------

ADDRESSES: Final = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_CLASSES = (each for each in vars(networks).values() if isinstance(each, type))
_URLS = [each for each in _CLASSES if is_url(each) and each.__name__[0] != "_"]

EXACT: Final[dict[type, EncodingRule]] = {
    Counter: simple("counter", dict, Counter),
    defaultdict: EncodingRule(
        "defaultdict",
        lambda value: {"v": dict(value)},
        lambda factory, entries: defaultdict(factory, entries["v"]),
        _is_factory,
        _factory_reference,
    ),
    OrderedDict: simple("ordereddict", lambda value: [[*pair] for pair in value.items()], OrderedDict),
    deque: EncodingRule(
        "deque",
        lambda value: {"v": list(value)} | ({} if value.maxlen is None else {"m": value.maxlen}),
        lambda _, entries: deque(entries["v"], entries.get("m")),
    ),
    Fraction: simple("fraction", lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts)),
    range: simple("range", lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    re.Pattern: simple("pattern", lambda value: [value.pattern, value.flags], lambda parts: re.compile(*parts)),
    ZoneInfo: simple("zone", zone_apart, zone_together),
    dt.timezone: simple("offset", zone_apart, zone_together),
    **{each: simple(each.__name__.lower(), str, each) for each in ADDRESSES},
    ByteSize: simple("bytesize", int, ByteSize),
    NameEmail: simple("nameemail", lambda value: [value.name, value.email], lambda parts: NameEmail(*parts)),
    PaymentCardNumber: simple("paymentcardnumber", str.__str__, _card),
    Url: simple("Url", str, lambda text: _core_url(Url, text)),
    MultiHostUrl: simple("MultiHostUrl", str, lambda text: _core_url(MultiHostUrl, text)),
    **{each: _url_of(each) for each in _URLS},
}

FAMILIES: Final = (EncodingRule("url", _url_apart, _url, is_url),)
"""Classes that users derive from the libraries' own."""
