"""Postgres and Redis from wheels, for machines without services: the demo, a first try, tests.

Not for production. Importing it loads no server package and starts nothing; `Embedded.start()` does.
"""

from flujo_client.embedded.redis import RedisKind
from flujo_client.embedded.services import Embedded
from flujo_client.embedded.state import Running
from flujo_client.embedded.state import read as running

__all__ = ["Embedded", "RedisKind", "Running", "running"]
