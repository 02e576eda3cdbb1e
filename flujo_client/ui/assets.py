"""The page's static files. Their addresses contain a digest of their content, so that browsers keep them for ever."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """A static file, and its address below the page's root."""

    body: bytes
    media_type: str
    path: str


def _asset(name: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:16]
    return Asset(body, _TYPES[name.rpartition(".")[2]], f"/static/{digest}/{name}")


ASSETS: Final = {
    file.name: _asset(file.name, file.read_bytes()) for file in files("flujo_client.ui").joinpath("static").iterdir()
}


async def static(request: Request) -> Response:
    """Answer with a static file; an address with another digest, from another version, gets it too, but may not keep it."""
    asset = ASSETS.get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    is_same = asset.path.split("/")[2] == request.path_params["digest"]
    return Response(
        asset.body, headers={"cache-control": _FOR_EVER if is_same else "no-store"}, media_type=asset.media_type
    )


ROUTES: Final = [Route("/static/{digest}/{name}", static)]
