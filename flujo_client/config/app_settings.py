"""The settings that a Celery app already has: its broker, key prefix, result backend and Sentinels, and the database of its Django project.

It opens no connections, imports Django only if the project has imported and configured it, and shows no secret in its `SettingsError`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from flujo_client.config.models import AMQP, SENTINEL
from flujo_client.errors import SettingsError
from flujo_client.redact import mask_url

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
    """Import an app by `package`, `package.module` or `package.module:name`, as `celery -A` does; raises SettingsError."""
    from celery import Celery
    from celery.app.utils import find_app as resolve

    found, cause = None, None
    try:
        found = resolve(reference)
    except (ImportError, AttributeError, ValueError) as error:
        cause = error
    if isinstance(found, Celery):
        return found
    message = f"the Celery app {reference!r} cannot be loaded: {cause or f'it is a {type(found).__name__}'}"
    way_out = "name it as for `celery -A`, such as `shop` or `shop.celery:app`, in the project's folder"
    raise SettingsError(message, suggestion=way_out, cause=cause)


def settings_of(app: Celery, known: Container[str] = ()) -> dict[str, Found]:
    """Return the settings that an app has, by our names, without those that are `known`. Reading them loads the app's configuration. Raises SettingsError."""
    if app.conf.task_always_eager:  # a test's app: no service is used, whatever it or the environment names
        return dict.fromkeys(("broker_url", "result_backend_url", "database_url"), Found(None, PLACE))
    readers: dict[str, Callable[[Celery], Any]] = {
        "broker_url": broker_of,
        "result_backend_url": _results_of,
        "broker_key_prefix": lambda app: _options(app).get("global_keyprefix"),
        "sentinel_master": lambda app: _options(app).get("master_name"),
        "sentinel_password": lambda app: (_options(app).get("sentinel_kwargs") or {}).get("password"),
        "database_url": lambda _: _database(),
    }
    values = {name: read(app) for name, read in readers.items() if name not in known}
    places = {"database_url": DATABASE}
    return {name: Found(value, places.get(name, PLACE)) for name, value in values.items() if value}


def broker_of(app: Celery) -> str | None:
    """Return the URL of an app's broker, to which we send and from which it reads; None if it names none. Raises SettingsError."""
    url, read = _url(app.conf.broker_write_url), _url(app.conf.broker_read_url)
    if _server(url) != _server(read):
        what = f"{PLACE}: broker_write_url is {mask_url(url)}, but workers read from broker_read_url, {mask_url(read)}"
        raise SettingsError(what, suggestion="let both name the same Redis")
    return _secured(url, app.conf, "broker_use_ssl") or None


def _results_of(app: Celery) -> str | None:
    """Return the URL of the app's result backend, if it can count the members of our chords: Redis, with the broker's key prefix and master."""
    url, brokers, own = _url(app.conf.result_backend), _options(app), app.conf.result_backend_transport_options or {}
    is_alike = all(brokers.get(name) == own.get(name) for name in ("global_keyprefix", "master_name"))
    return _secured(url, app.conf, "redis_backend_use_ssl") if is_alike and url.startswith(_REDIS) else None


def _options(app: Celery) -> Mapping[str, Any]:
    return app.conf.broker_transport_options or {}


def _url(written: Any) -> str:
    return written if isinstance(written, str) else ";".join(written or ())


def place_of(url: str) -> str:
    """Return a URL without options and without the database 0, which is the usual one."""
    return url.partition("?")[0].rstrip("/").removesuffix("/0")


def _server(url: str) -> str:
    """Return the place that a URL names, without the user and the password."""
    return place_of(url).rpartition("@")[2].rpartition("://")[2]


def _secured(url: str, conf: Mapping[str, Any], setting: str) -> str:
    """Return a URL with the options of TLS that kombu and Celery take apart from it."""
    options = conf[setting]
    if options and url.startswith(AMQP):
        message = f"{PLACE}: {setting} is set, but certificates of RabbitMQ must be among those that the system trusts"
        raise SettingsError(message, suggestion=f"name the broker as amqps://… and leave {setting} out")
    if options and url.startswith(SENTINEL):
        raise SettingsError(f"{PLACE}: {setting} is set, but Sentinels are only supported without TLS")
    given = options.items() if isinstance(options, Mapping) else ()
    query = urlencode({name: getattr(value, "name", value) for name, value in given if f"{name}=" not in url})
    written = f"{url}{'&' if '?' in url else '?'}{query}" if query else url
    # redis-py knows fewer names than kombu for the check of certificates.
    plain = _REQUIREMENT.sub(lambda found: found[1].lower(), written)
    return re.sub("^redis:", "rediss:", plain) if options else plain


_NOT_LIBPQS: Final = {
    "assume_role", "isolation_level", "pool", "server_side_binding", "cursor_factory", "prepare_threshold", "row_factory", "context", "autocommit",
}  # fmt: skip
"""The names in a database's OPTIONS that Django and psycopg read, and libpq does not know."""


def _database() -> str | None:
    """Return the URL of the database `default` of a Django project that is configured in this process."""
    conf: Any = sys.modules.get("django.conf")
    databases = conf.settings.DATABASES if conf is not None and conf.settings.configured else {}
    database: Mapping[str, Any] = databases.get("default") or {}
    engine = str(database.get("ENGINE") or "")
    if not engine or engine.endswith(".dummy"):
        return None
    if not re.search("postg|psql", engine):
        message = f"{DATABASE}: the database `default` has the engine {engine}, but runs are stored in Postgres"
        raise SettingsError(message, suggestion="set FLUJO_DATABASE_URL to a database in Postgres")
    given = {name: database.get(name) or "" for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
    query = {name.lower(): given[name] for name in ("HOST", "PORT") if given[name]}
    query |= {
        name: value
        for name, value in (database.get("OPTIONS") or {}).items()
        if name.islower() and name not in _NOT_LIBPQS and isinstance(value, str | int)
    }
    user, password, name = (quote(str(given[part]), "") for part in ("USER", "PASSWORD", "NAME"))
    whose = f"{user}{':' if password else ''}{password}{'@' if user or password else ''}"
    return f"postgresql://{whose}/{name}{'?' if query else ''}{urlencode(query, quote_via=quote)}"
