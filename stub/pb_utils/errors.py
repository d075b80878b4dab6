# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The two error classes for a model.py: one to return, one to raise. (pure)"""

from __future__ import annotations

from typing import Union

from pyruntime.stub.pb_utils.arguments import as_text
from pyruntime.utils.errors import Code


class TritonModelException(Exception):
    """Raised for every misuse of `triton_python_backend_utils`; models raise it too."""


class _ReadOnly(type):
    """Makes the attributes of a class read-only, so that no model can change the codes for all others."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__}.{name} is read-only")


class TritonError(metaclass=_ReadOnly):
    """Why one request failed: a value to give to an InferenceResponse, not an exception."""

    __slots__ = ("_code", "_message")

    UNKNOWN = Code.UNKNOWN
    INTERNAL = Code.INTERNAL
    NOT_FOUND = Code.NOT_FOUND
    INVALID_ARG = Code.INVALID_ARG
    UNAVAILABLE = Code.UNAVAILABLE
    UNSUPPORTED = Code.UNSUPPORTED
    ALREADY_EXISTS = Code.ALREADY_EXISTS
    CANCELLED = Code.CANCELLED
    # Not Triton's: a called model has a limit for its executions, and took longer.
    DEADLINE_EXCEEDED = Code.DEADLINE_EXCEEDED

    def __init__(self, message: Union[str, bytes], code: Code = Code.INTERNAL) -> None:
        """Raises TypeError unless `message` is a text and `code` one of the codes above."""
        if not isinstance(code, Code):
            raise TypeError(f"TritonError code must be one of TritonError's own, found type {type(code)}")
        self._message = message if type(message) is str else as_text(message, "TritonError message")
        self._code = code

    def code(self) -> Code:
        """The error code."""
        return self._code

    def message(self) -> str:
        """The message for the client."""
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, TritonError.{self._code.name})"
