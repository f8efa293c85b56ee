"""Programs that run in the containers of tests: in Python, which the base image has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.error import URLError
from urllib.request import urlopen

from refill.engines.description import Description, Place
from refill.load.wire import Address

# Serves its data folder, adds a line to a file there at every start, ends on TERM.
SERVER = """
import http.server, os, signal, sys
port, folder = int(sys.argv[1]), sys.argv[2]
os.chdir(folder)
with open("starts", "a") as file:
    file.write("started\\n")
    file.flush()
    os.fsync(file.fileno())
print("serving", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go out in one piece, or the second waits for the first to be acknowledged.
    wbufsize = -1
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()
"""
# Reads all of its standard input before it serves the number of bytes that came.
READER = """
import pathlib, sys
read = sys.stdin.buffer.read()
pathlib.Path(sys.argv[2], "read").write_text(str(len(read)))
""" + SERVER.lstrip()  # fmt: skip
# Runs on one CPU for ever, in a thread beside the server.
BUSY = """
import threading
def run():
    while True:
        pass
threading.Thread(target=run, daemon=True).start()
""" + SERVER.lstrip()  # fmt: skip
FAILING = "import sys; print('the disk is on fire', flush=True); sys.exit(3)"
# Takes memory until it is ended.
GREEDY = "taken = []\nwhile True:\n    taken.append(bytearray(b'x') * (8 << 20))\n"


def ready(address: Address) -> bool:
    """Ask for the file that the server writes at its start."""
    return "started" in fetch(address, "starts")


def fetch(address: Address, name: str) -> str:
    """Get a file of the server's data folder."""
    try:
        with urlopen(f"{address.url}/{name}", timeout=5) as answer:
            content: bytes = answer.read()
    except URLError as error:
        raise ConnectionError(str(error)) from error
    return content.decode()


def description(
    program: str = SERVER,
    name: str = "engine",
    standard_input: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    start_timeout_s: float = 60.0,
    is_ready: Callable[[Address], bool] = ready,
) -> Description:
    """Describe an engine that is one of the programs above."""

    def command(place: Place) -> Sequence[str]:
        return ["python3", "-c", program, str(place.port), str(place.storage)]

    return Description(
        name,
        command,
        is_ready,
        environment or {},
        start_timeout_s,
        standard_input=None if standard_input is None else lambda _: standard_input,
        input_ends=True,
    )
