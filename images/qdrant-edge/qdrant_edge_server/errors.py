"""Errors that become answers in Qdrant's shape: `{"status": {"error": ...}, "time": ...}`."""

from __future__ import annotations


class ApiError(Exception):
    """A request that cannot be served.

    `status` is the HTTP status, `message` the text of `status.error`, worded as Qdrant words it
    where Qdrant has the same error.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def bad_body(message: str) -> ApiError:
    """400: the JSON body does not have the expected form."""
    return ApiError(400, f"Format error in JSON body: {message}")


def wrong_input(message: str) -> ApiError:
    """400: the body is well formed but asks for something that does not fit the collection."""
    return ApiError(400, f"Wrong input: {message}")


def unsupported(feature: str) -> ApiError:
    """400: Qdrant has the feature, this server does not."""
    return ApiError(400, f"Wrong input: `{feature}` is not supported by the embedded Qdrant")


def invalid_value(field: str, problem: str) -> ApiError:
    """422: Qdrant's answer to a value outside its allowed range."""
    return ApiError(422, f"Validation error in JSON body: [{field}: {problem}]")


def missing_collection(name: str) -> ApiError:
    """404 in Qdrant's words."""
    return ApiError(404, f"Not found: Collection `{name}` doesn't exist!")


def missing_point(point_id: object) -> ApiError:
    """404 in Qdrant's words."""
    return ApiError(404, f"Not found: No point with id {point_id} found")


def from_engine(error: Exception) -> ApiError:
    """The HTTP answer to an exception that the wheel raised while it served a request.

    The wheel raises plain `Exception` with the text of Qdrant's own error and no code, so the
    text decides between 404, 500 and 400.
    """
    text = str(error)
    if text.startswith("No point with id"):
        return ApiError(404, f"Not found: {text} found")
    if text.startswith("Service ") or "Operation cancelled" in text or "os error" in text:
        return ApiError(500, f"Service internal error: {text}")
    return ApiError(400, f"Wrong input: {text}")
