"""The operations of the gateway's rounds, and the requests that they become."""

from refill.operations.catalog import Operation, Operations, load_operations
from refill.operations.requests import Request, RequestSet

__all__ = ["Operation", "Operations", "Request", "RequestSet", "load_operations"]
