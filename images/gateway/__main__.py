"""Entry of the gateway: `python gateway.pyz`, or `python` and the folder it was assembled in."""

import sys

from gateway.cli import main

sys.exit(main(sys.argv[1:]))
