# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP headers and gRPC metadata that become parameters of inference requests. (pure)

Operators select them by a pattern: --http-header-forward-pattern and --grpc-header-forward-pattern. It may match any
part of a name, in any case; the model gets the names as the client wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.errors import Code, InferenceError

# The names and values of headers.
Forwarded = tuple[tuple[str, str], ...]

# The longest name that is matched: some patterns take time in the square of the length, and real names are shorter.
NAME_LENGTH_MAX = 256

# Parameters with a meaning of their own.
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
RESERVED_PREFIX = "triton_"


class HeaderPattern:
    """Selects the headers to forward by their names."""

    def __init__(self, pattern: str) -> None:
        """`pattern` is a regular expression, which the settings have checked; "" selects no headers."""
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def __repr__(self) -> str:
        return f"<HeaderPattern {self._pattern.pattern if self._pattern else ''!r}>"

    def select(self, headers: Iterable[tuple[str, str]]) -> Forwarded:
        """The headers to forward, in order."""
        pattern = self._pattern
        if pattern is None:
            return ()
        return tuple(each for each in headers if len(each[0]) <= NAME_LENGTH_MAX and pattern.search(each[0]))


def forward(request: InferRequest, forwarded: Forwarded) -> None:
    """Add headers to the parameters; a header replaces a parameter with the same name.

    Raises InferenceError (INVALID_ARG) for a reserved name.
    """
    for name, value in forwarded:
        small = name.lower()
        if small in RESERVED or small.startswith(RESERVED_PREFIX):
            message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
            raise InferenceError(message, Code.INVALID_ARG)
        request.parameters[name] = value
