"""Errors as the OpenAI API has them: a status, and a body that says what was wrong with what."""

from __future__ import annotations

from elman.base.errors import ElmanError
from elman.serve.engine import Busy
from elman.serve.http.jobs import TimeUp
from elman.serve.http.schema import ErrorAnswer, ErrorDetail

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


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
