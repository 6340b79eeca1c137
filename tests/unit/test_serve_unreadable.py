"""An answer that the server's chat parser gives up on is kept and named, not thrown away as a failure."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bc250studio.errors import JobFailed
from bc250studio.serve.talk import Talk


@pytest.fixture
def speaks():
    """A loopback server that streams the given records; yields (set records, url)."""
    records: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for record in records:
                self.wfile.write(f"data: {json.dumps(record)}\n\n".encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield records, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


SAID = {"choices": [{"delta": {"content": "so far"}}], "timings": {"predicted_n": 3, "predicted_per_second": 9.0}}


def test_what_was_said_stands(speaks):
    records, url = speaks
    message = "The model produced output that does not match the expected peg-native format."
    records += [SAID, {"error": {"code": 500, "message": message}}]
    answer = Talk(url, "key").chat([{"role": "user", "content": "Hi"}], 0.0)
    assert (answer.text, answer.stop) == ("so far", "format")


def test_other_errors_are_still_errors(speaks):
    records, url = speaks
    records += [SAID, {"error": {"code": 500, "message": "device lost"}}]
    with pytest.raises(JobFailed, match="device lost"):
        Talk(url, "key").chat([{"role": "user", "content": "Hi"}], 0.0)
