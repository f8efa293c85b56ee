"""Configuration: loaded, validated against workflow/schemas, and turned into what Qdrant takes."""

from refill.config.errors import ConfigError
from refill.config.load import (
    load,
    load_claims,
    load_images,
    load_native,
    load_optimizers,
    validate,
)
from refill.config.optimizers import resolve_optimizers
from refill.config.paths import PROJECT

__all__ = [
    "PROJECT",
    "ConfigError",
    "load",
    "load_claims",
    "load_images",
    "load_native",
    "load_optimizers",
    "resolve_optimizers",
    "validate",
]
