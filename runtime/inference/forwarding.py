# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Headers of HTTP and metadata of gRPC that become parameters of inference requests. (pure)

Operators say which by a pattern: --http-header-forward-pattern and --grpc-header-forward-pattern. It may match any part
of a name, in any case; what it matches goes to the model under the name as the client wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.errors import Code, InferenceError

# The names and values of headers.
Forwarded = tuple[tuple[str, str], ...]

# No client has longer names, and there are patterns for which the time grows with the square of a name's length.
NAME_LENGTH_MAX = 256

# Parameters that have a meaning of their own.
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
RESERVED_PREFIX = "triton_"


class HeaderPattern:
    """Which headers are forwarded, by their names."""

    def __init__(self, pattern: str) -> None:
        """`pattern` is a regular expression, as settings make sure; "" is for no header at all."""
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def __repr__(self) -> str:
        return f"<HeaderPattern {self._pattern.pattern if self._pattern else ''!r}>"

    def select(self, headers: Iterable[tuple[str, str]]) -> Forwarded:
        """Those of `headers` that are forwarded, in order."""
        pattern = self._pattern
        if pattern is None:
            return ()
        return tuple(each for each in headers if len(each[0]) <= NAME_LENGTH_MAX and pattern.search(each[0]))


def forward(request: InferRequest, forwarded: Forwarded) -> None:
    """Make parameters of headers; one takes the place of a parameter with its name.

    Raises InferenceError (INVALID_ARG) for a name that means something else.
    """
    for name, value in forwarded:
        small = name.lower()
        if small in RESERVED or small.startswith(RESERVED_PREFIX):
            message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
            raise InferenceError(message, Code.INVALID_ARG)
        request.parameters[name] = value
