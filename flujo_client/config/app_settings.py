"""The settings that a Celery app already has: its broker, key prefix, result backend and Sentinels, and the database of its Django project.

Reads configurations only: it opens no connections, and imports Django only if the project has imported and configured it. In: a Celery app.
Out: values by the names of our settings, or a `SettingsError` that names the line to change, never a secret.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_client.config.models import SENTINEL
from flujo_client.errors import SettingsError

if TYPE_CHECKING:
    from celery import Celery

PLACE: Final = "the Celery app"
"""The origin of what an app says, for people."""
DATABASE: Final = "Django's DATABASES"
_REDIS: Final = ("redis://", "rediss://", SENTINEL)
_REQUIREMENT: Final = re.compile(r"(?<=ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)")


class Found(NamedTuple):
    """A value of a setting, and the place that sets it, for people."""

    value: Any
    place: str


def find_app(reference: str) -> Celery:
    """Import an app, as `celery -A` does.

    Args:
        reference: `package`, `package.module` or `package.module:name`.

    Raises:
        SettingsError: no Celery app is there, or it cannot be imported.
    """
    from celery import Celery
    from celery.app.utils import find_app as resolve

    try:
        app = resolve(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise _not_found(reference, f"{type(error).__name__}: {error}", error) from error
    if not isinstance(app, Celery):
        raise _not_found(reference, f"it is a {type(app).__name__}")
    return app


def _not_found(reference: str, why: str, cause: Exception | None = None) -> SettingsError:
    return SettingsError(
        f"the Celery app {reference!r} cannot be loaded: {why}",
        suggestion="name it as for `celery -A`, such as `shop` or `shop.celery:app`, in the project's folder",
        cause=cause,
    )


def settings_of(app: Celery, known: Container[str] = ()) -> dict[str, Found]:
    """Return the settings that an app has, by our names, without those that are `known`. Reading them loads the app's configuration."""
    if app.conf.task_always_eager:
        return {}  # a test's app, which may have a broker of any kind
    options = app.conf.broker_transport_options or {}
    sentinels: Mapping[str, Any] = options.get("sentinel_kwargs") or {}
    values = {
        "broker_url": broker_of(app),
        "result_backend_url": _result_backend_of(app),
        "broker_key_prefix": options.get("global_keyprefix"),
        "sentinel_master": options.get("master_name"),
        "sentinel_password": sentinels.get("password"),
    }
    return {name: Found(value, PLACE) for name, value in values.items() if value and name not in known}


def broker_of(app: Celery) -> str | None:
    """Return the URL of an app's broker; None if it names none."""
    return _url(app.conf.broker_write_url)


def _result_backend_of(app: Celery) -> str | None:
    """Return the URL of the app's result backend if it is Redis; another one counts no members of chords."""
    url = _url(app.conf.result_backend)
    return url if url is not None and url.startswith(_REDIS) else None


def _url(written: Any) -> str | None:
    """Return a URL, or several, as our settings have it. redis-py knows fewer names than kombu for the check of a certificate."""
    text = written if isinstance(written, str) else ";".join(written or ())
    return _REQUIREMENT.sub(lambda found: found[1].lower(), text) or None
