"""An application that mounts the page behind its own login: a header names who asks, and operators' names begin with `op-`."""

import socket

import uvicorn
from fastapi import FastAPI, Request

from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User


def who(request: Request) -> User | None:
    name = request.headers.get("x-user")
    return User(name, may_act=name.startswith("op-")) if name else None


app = FastAPI()
app.mount("/flujo", flujo_ui(auth=who))

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/flujo/", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
