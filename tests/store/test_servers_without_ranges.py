"""A web server that ignores byte ranges, as Python's own does: the error says so."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.errors import ReadError
from headrace.store import open_cache
from headrace.testing import tiny_cache


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def test_the_error_says_that_the_server_answers_no_ranges(tmp_path):
    tiny_cache(tmp_path / "a", documents=30)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        cache = open_cache(f"http://127.0.0.1:{server.server_port}/a")
        with pytest.raises(ReadError, match="server that answers byte ranges"):
            cache.tokens(0, cache.num_tokens)
    finally:
        server.shutdown()
        server.server_close()
