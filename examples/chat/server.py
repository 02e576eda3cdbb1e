"""A chat. Start `flujo up` in this folder, with OPENAI_API_KEY set, and then `fastapi dev server.py`.

It needs `pip install 'flujo-worker[worker,embedded,live]' 'pydantic-ai-slim[openai]' 'fastapi[standard]'`.
"""

from pathlib import Path
from typing import Annotated

from fastapi import Body, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse

from flujo_client import AsyncFlujoClient
from flujo_client.errors import ResumeError, RunNotFound
from flujo_client.live.app import live_app

client = AsyncFlujoClient()
app = FastAPI()
app.mount("/live", live_app(client, auth=None))  # only for browsers on this machine; else pass your login


@app.exception_handler(RunNotFound)
@app.exception_handler(ResumeError)
async def refuse(_: Request, error: RunNotFound | ResumeError) -> JSONResponse:
    return JSONResponse({"error": error.message}, 404 if isinstance(error, RunNotFound) else 409)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))


@app.post("/chats")
async def ask(prompt: Annotated[str, Body(embed=True)]) -> dict[str, str]:
    return {"run": (await client.enqueue("assistant:pipeline", prompt)).id}


@app.post("/chats/{run}/answer")
async def answer(run: str, keep: Annotated[bool, Body(embed=True)]) -> None:
    await (await client.get_run(run)).resume(keep)
