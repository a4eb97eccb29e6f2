"""Errors in the format of the OpenAI API: a status, and a body with message, field and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from elman.base.errors import ElmanError
from elman.serve.limits import Limits
from elman.serve.refusals import Busy, Overloaded, TimeUp, Unavailable

TYPES = {408: "timeout_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
"""Every other status is an `invalid_request_error`."""

EITHER = {
    "prompt": "must be a text, a list of token ids, or a list of several of either",
    "input": "must be a text, a list of token ids, or a list of several of either",
    "stop": "must be a text or a list of texts",
}
"""Fields of more than one type."""
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}


class ErrorDetail(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


class ApiError(Exception):
    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> bytes:
        # Lone surrogates, which JSON may contain, cannot be encoded.
        message = self.message.encode("utf-8", "backslashreplace").decode()
        detail = ErrorDetail(
            message=message,
            type=TYPES.get(self.status, "invalid_request_error"),
            param=self.param,
            code=self.code,
        )
        return ErrorAnswer(error=detail).model_dump_json().encode()

    def response(self) -> Response:
        headers = HEADERS.get(self.status)
        return Response(self.body, self.status, headers, media_type="application/json")

    @staticmethod
    def of(error: ElmanError) -> ApiError:
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        if isinstance(error, Busy):
            return ApiError(429, message, code="rate_limit_exceeded")
        if isinstance(error, TimeUp):
            return ApiError(408, message, code="timeout")
        if isinstance(error, (Overloaded, Unavailable)):
            code = "overloaded" if isinstance(error, Overloaded) else "model_changed"
            return ApiError(503, message, code=code)
        return ApiError(400, message)


def too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is too large (limit {limits.max_body_bytes:,} bytes)")


def wrong_body(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """Turn pydantic's validation errors into an answer about the first."""
    first = problems[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON")
    if not where:
        return ApiError(400, str(first["msg"]).removeprefix("Value error, "))
    param = where[0]
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"there is no field '{param}'", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        message = f"the field '{param}' is missing"
        return ApiError(400, message, param=param, code="missing_required_parameter")
    # A union of types has one error for each; which type was meant is unknown.
    is_union = param in EITHER and first["type"] != "value_error"
    message = EITHER[param] if is_union else str(first["msg"]).removeprefix("Value error, ")
    is_type = is_union or first["type"].endswith(("_type", "_parsing"))
    code = "invalid_type" if is_type else "invalid_value"
    return ApiError(400, f"{param}: {message}", param=param, code=code)
