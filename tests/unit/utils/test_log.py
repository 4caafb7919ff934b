"""Content of verbose logs."""

import subprocess
import sys

CALL = """
import logging, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import httpx2
from braidrl.utils.log import configure_logging

class Empty(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_request(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Empty)
threading.Thread(target=server.serve_forever, daemon=True).start()
configure_logging(verbose=True)
logging.getLogger("braidrl.module").debug("ours")
httpx2.get(f"http://127.0.0.1:{server.server_port}")
"""


def test_the_calls_of_libraries_fill_no_verbose_log() -> None:
    called = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, timeout=60)
    assert called.returncode == 0, called.stderr
    (line,) = called.stdout.splitlines()
    assert line.endswith("DEBUG   ours")
