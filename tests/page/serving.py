"""Processes that serve the page."""

import os
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path


def serve(app, path="/", port=0):
    """Serve an application in this process, and print its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", port), reuse_port=True) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


@contextmanager
def serving(settings, *command):
    """Start a process that prints the address of the page, and yield that address."""
    environment = {**os.environ, **settings.as_environment(), "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "http://" in line:
                    break
            else:
                raise AssertionError("".join(lines))
            yield lines[-1].split()[-1].rstrip("/")
        finally:
            process.terminate()
