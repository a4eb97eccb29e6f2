"""Errors as the OpenAI API has them: a status, and a body that says what was wrong with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elman.base.errors import ElmanError
from elman.serve.engine import Busy
from elman.serve.http.jobs import TimeUp
from elman.serve.http.schema import ErrorAnswer, ErrorDetail

TYPES = {
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""Everything else is an `invalid_request_error`, keys and names that are not known included."""

EITHER = {
    "prompt": "must be a text, a list of token ids, or a list of several of either",
    "input": "must be a text, a list of token ids, or a list of several of either",
    "stop": "must be a text or a list of texts",
}
"""What fields of more than one type may be."""
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}


class ApiError(Exception):
    """An answer other than success."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        """What clients read beside the body: when to try again, how to send a key."""
        return HEADERS.get(self.status, {})

    @property
    def body(self) -> bytes:
        """The answer's body."""
        # Half characters, which a client may send and JSON may hold, cannot be sent back.
        message = self.message.encode("utf-8", "backslashreplace").decode()
        detail = ErrorDetail(
            message=message,
            type=TYPES.get(self.status, "invalid_request_error"),
            param=self.param,
            code=self.code,
        )
        return ErrorAnswer(error=detail).model_dump_json().encode()

    @staticmethod
    def of(error: ElmanError) -> ApiError:
        """The answer to something that Elman could not do."""
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        if isinstance(error, Busy):
            return ApiError(429, message, code="rate_limit_exceeded")
        if isinstance(error, TimeUp):
            return ApiError(408, message, code="timeout")
        return ApiError(400, message)


def wrong_body(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """What is wrong with a body that is not of the wire format, from pydantic's complaints."""
    first = problems[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if not where or first["type"] == "json_invalid":
        return ApiError(400, str(first["msg"]))
    param = where[0]
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"there is no field '{param}'", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        message = f"the field '{param}' is missing"
        return ApiError(400, message, param=param, code="missing_required_parameter")
    # A union of types complains once for each; which of them was meant is not known.
    is_union = param in EITHER and first["type"] != "value_error"
    message = EITHER[param] if is_union else str(first["msg"]).removeprefix("Value error, ")
    is_type = is_union or first["type"].endswith(("_type", "_parsing"))
    code = "invalid_type" if is_type else "invalid_value"
    return ApiError(400, f"{param}: {message}", param=param, code=code)
