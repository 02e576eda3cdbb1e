"""The entry point by which kombu knows the serializer `flujo` in every process where this package is installed, without an import of ours.

The processes of an app that only send its own tasks share the app's `accept_content`, and kombu rejects a name there that it does not know.
This module is imported with kombu and so imports next to nothing. It knows no signing keys: whatever sends or carries our messages calls
`wire.register`, which replaces this registration.
"""

from importlib import import_module
from typing import Any, Final

_WIRE: Final = "flujo_client.transport.wire"
CONTENT_TYPE: Final = "application/x-flujo+json"


def _dump(payload: Any) -> Any:
    return import_module(_WIRE).dump(payload)


def _load(body: bytes | str | memoryview) -> Any:
    return import_module(_WIRE).load(body)


CONTENT_ENCODING: Final = "binary"
"""Every transport base64s bytes alike; `binary` prevents that the body is taken for text."""
REGISTRATION: Final = (_dump, _load, CONTENT_TYPE, CONTENT_ENCODING)
"""What kombu passes to its `register`, after the entry point's name."""
