"""A client of an ASGI application in this process: no socket, no server."""

import asyncio
import json
import re
import threading
from typing import NamedTuple

GONE = object()  # in place of a chunk: the client goes away
LATER = object()  # the next chunk comes a moment later
NOTHING_MORE = object()  # in place of a chunk: the rest never comes


class Answer(NamedTuple):
    status: int
    text: bytes
    headers: dict[str, str]

    def json(self):
        return json.loads(self.text)


class Client:
    """Sends requests from any thread; the application runs in one event loop."""

    def __init__(self, app, host="127.0.0.1"):
        self.app, self.host = app, host
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def request(self, method, path, body=b"", **headers):
        """One request; a body that is no bytes and no list of chunks is sent as JSON."""
        if not isinstance(body, bytes | list):
            body = json.dumps(body).encode()
        chunks = body if isinstance(body, list) else [body]
        asked = self._exchange(method, path, chunks, headers)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(timeout=60)

    def get(self, path):
        return self.request("GET", path)

    def post(self, body, kind="application/json", **headers):
        return self.request("POST", "/predict", body, **{"Content-Type": kind, **headers})

    def metric(self, name):
        text = self.get("/metrics").text.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def _exchange(self, method, path, chunks, headers):
        scope = {
            "type": "http",
            "state": {},
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": (self.host, 1234),
            "server": ("127.0.0.1", 80),
        }
        waiting, sent = list(chunks), []

        async def receive():
            chunk = waiting.pop(0) if waiting else NOTHING_MORE
            if chunk is LATER:
                await asyncio.sleep(0.05)
                chunk = waiting.pop(0)
            if chunk is GONE:
                return {"type": "http.disconnect"}
            if chunk is NOTHING_MORE:
                await asyncio.sleep(3600)
            return {
                "type": "http.request",
                "body": chunk,
                "more_body": bool(waiting) and waiting[0] is not LATER,
            }

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        if not sent:
            return None  # the client has gone
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]), found)
