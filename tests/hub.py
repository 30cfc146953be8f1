"""Local hub: serves a few files like the Hugging Face hub, and records the requests.

It sends the headers and error codes that the hub's clients read: ETag, X-Repo-Commit, X-Error-Code
(huggingface.co/docs/hub, `huggingface_hub.utils.hf_raise_for_status`).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
TOKEN = "hf_this_is_a_token"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
"""Small Llama: 4 layers of 718,336 parameters, untied embedding and head, and a final norm."""
LLAMA_PARAMS = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688 + 2 * 256) + 2 * 1024 * 256 + 256

FILES: dict[str, dict[str, Any]] = {
    "here/small": {"config.json": LLAMA},
    "there/small": {"config.json": {**LLAMA, "num_hidden_layers": 8}},
    "here/gated": {"config.json": LLAMA},
    "here/weights": {"model.gguf": "GGUF"},
    "here/adapter": {
        "adapter_config.json": {
            "peft_type": "LORA",
            "base_model_name_or_path": "here/small",
            "r": 16,
        }
    },
    "here/strange": {"config.json": {"model_type": "resnet"}},
    "here/text": {"config.json": "no JSON at all"},
    "here/huge": {"config.json": {**LLAMA, "padding": "x" * 1_000_000}},
}
"""Repositories and their files; `here/gated` requires a token."""


class Hub:
    """Address of a hub, and the requests that it received."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path and token of every request for a file."""
        self.status = 0
        """If not 0: status with which every request is answered."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        token = self.headers.get("Authorization")
        if not self.path.startswith("/api/"):  # the client library sends these on its own
            self.hub.asked.append((self.command, self.path, token))
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if self.hub.status:
            self._send(self.hub.status)
        elif found is None:
            self._send(404, {"X-Error-Code": "RepoNotFound"})
        elif token not in (None, f"Bearer {TOKEN}"):
            self._send(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif found[1] not in FILES:
            # without a token the hub does not reveal whether a repository is private
            self._send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
        elif found[1] == "here/gated" and token is None:
            self._send(401, {"X-Error-Code": "GatedRepo"})
        elif found[2] not in ("main", "v2", COMMIT, OTHER_COMMIT):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send_file(FILES[found[1]].get(found[3]), found[2])

    def _send_file(self, content: Any, revision: str) -> None:
        commit = OTHER_COMMIT if revision in ("v2", OTHER_COMMIT) else COMMIT
        if content is None:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        if commit == OTHER_COMMIT:
            content = {**content, "num_hidden_layers": 6}
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        tag = hashlib.sha1(data).hexdigest()
        self._send(200, {"ETag": f'"{tag}"', "X-Repo-Commit": commit}, data)

    def _send(self, status: int, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving() -> Iterator[Hub]:
    """Run a hub on a free port of the loopback interface."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"hub": hub})
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
