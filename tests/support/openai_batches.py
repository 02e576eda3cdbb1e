"""A small server on this machine that speaks OpenAI's files and batches, beside responses: a batch ends when the test says so."""

import json
import re
import threading
import time

from typing_extensions import override

from tests.support.openai_server import _ANSWERS, OpenAIServer, Request, Said, _Handler


class OpenAIBatches(OpenAIServer):
    """Serves while it is entered.

    Attributes:
        files: the texts of files by their ids, and `batches` the batches, in the order in which they came.
        ends: whether batches end when they are asked about. expires: whether their requests expire then.
    """

    def __init__(self):
        super().__init__(["live"])
        self.files, self.batches, self.status_requests = {}, [], 0
        self.ends, self.expires = threading.Event(), False

    def __enter__(self):
        super().__enter__()
        self._http.RequestHandlerClass = type("BatchHandler", (_BatchHandler,), {"server_of": self})
        return self

    def custom_ids(self, batch):
        """Return the ids of a batch's requests."""
        return [json.loads(line)["custom_id"] for line in self.files[batch["input_file_id"]].splitlines()]

    def store(self, text):
        name = f"file-{len(self.files)}"
        self.files[name] = text
        return name

    def batch(self, given):
        made = {
            "id": f"batch_{len(self.batches)}",
            "object": "batch",
            "endpoint": given["endpoint"],
            "input_file_id": given["input_file_id"],
            "completion_window": "24h",
            "status": "in_progress",
            "created_at": int(time.time()),
        }
        self.batches.append(made)
        return made

    def asked_about(self, name):
        self.status_requests += 1
        batch = next(each for each in self.batches if each["id"] == name)
        if self.ends.is_set() and batch["status"] == "in_progress":
            batch["status"] = "expired" if self.expires else "completed"
            if not self.expires:
                lines = map(json.loads, self.files[batch["input_file_id"]].splitlines())
                batch["output_file_id"] = self.store("\n".join(json.dumps(_answered(line)) for line in lines))
        return batch


def _answered(line):
    said = Said(f"batched {line['custom_id']}")
    body = _ANSWERS["/v1/responses"](Request(line["url"], json.dumps(line["body"]).encode()), said)
    return {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": body}, "error": None}


class _BatchHandler(_Handler):
    @override
    def do_POST(self):
        path = self.path.removeprefix("/v1/")
        if path not in ("files", "batches"):
            super().do_POST()
            return
        data = self.rfile.read(int(self.headers["content-length"])).decode()
        if path == "batches":
            self._tell(self.server_of.batch(json.loads(data)))
            return
        lines = [each for each in re.split(r"\r?\n", data) if each.startswith('{"custom_id"')]
        name = self.server_of.store("\n".join(lines))
        self._tell({"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "batch"})

    @override
    def do_GET(self):
        kind, *rest = self.path.partition("?")[0].removeprefix("/v1/").split("/")
        if kind == "files":
            self._send(Said(content_type="text/plain"), [self.server_of.files[rest[0]].encode()])
        elif rest:
            self._tell(self.server_of.asked_about(rest[0]))
        else:
            self._tell({"object": "list", "data": self.server_of.batches[::-1], "has_more": False})

    @override
    def do_DELETE(self):
        self._tell({"id": self.path.rpartition("/")[2], "object": "file", "deleted": True})

    def _tell(self, tree):
        self._send(Said(), [json.dumps(tree).encode()])
