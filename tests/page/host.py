"""An application that mounts the page behind its own login: a header names who asks, and operators' names begin with `op-`."""

from fastapi import FastAPI, Request
from serving import serve

from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User


def who(request: Request) -> User | None:
    name = request.headers.get("x-user")
    return User(name, may_act=name.startswith("op-")) if name else None


app = FastAPI()
app.mount("/flujo", flujo_ui(auth=who))

if __name__ == "__main__":
    serve(app, "/flujo/")
