"""Start the server, or its optimizer process, from this directory or from a zip archive of it."""

import sys
from pathlib import Path

from qdrant_edge_server.arguments import main

if __name__ == "__main__":
    # The optimizer process is started from the very same directory or archive.
    sys.exit(main(sys.argv[1:], archive=Path(__file__).resolve().parent))
