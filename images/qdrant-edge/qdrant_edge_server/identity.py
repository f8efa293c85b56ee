"""What this server says it is. It must never pass as the Qdrant server."""

from importlib.metadata import version

WHEEL_VERSION = version("qdrant-edge-py")

# The wheel does not tell its core's version at run time. The SBOM inside the wheel
# (dist-info/sboms/qdrant-edge-py.cyclonedx.json) names Qdrant's `api` crate that it was built
# with. A wheel that is not listed here is still served, under a version that says "unknown".
CORE_VERSIONS = {"0.9.0": "1.20.1-dev"}

CORE_VERSION = CORE_VERSIONS.get(WHEEL_VERSION)
TITLE = f"qdrant - embedded (qdrant-edge-py {WHEEL_VERSION})"
VERSION = f"{CORE_VERSION or '0.0.0-unknown'}+qdrant-edge-py.{WHEEL_VERSION}"
