# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every error of ours, and whose fault it is. (pure)

PyruntimeError
├── InferenceError      a client's request fails: carries Triton's error code and the message the client reads
├── LoadError           a model cannot be served: its author reads why in the log and in the repository index
│   └── ConfigError     ... because of its configuration
├── LocalError          we tried something our own protocol forbids: a bug of ours
├── PeerError           the other process broke the protocol: it is not to be trusted any further
└── OutOfMemoryError    shared memory could not be had: it is full, or a named limit is reached
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Triton's error codes, by the numbers of `TritonError` in a model.py."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    @property
    def words(self) -> str:
        """Triton's name of it, as it stands before a message: `Invalid argument`."""
        return "Invalid argument" if self is Code.INVALID_ARG else self.name.replace("_", " ").capitalize()


class PyruntimeError(Exception):
    """Base of every error that pyruntime raises on purpose."""


class InferenceError(PyruntimeError):
    """One request fails; everything else goes on. The message goes to the client as it is."""

    def __init__(self, message: str, code: Code = Code.INTERNAL) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def __repr__(self) -> str:
        return f"InferenceError({self.message!r}, {self.code.name})"


class LoadError(PyruntimeError):
    """A model, or one version of it, cannot be served. The message is for whoever wrote the model."""

    def __init__(self, message: str, code: Code = Code.INTERNAL) -> None:
        super().__init__(message)
        self.code = code


class ConfigError(LoadError):
    """A model's configuration asks for what cannot be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.INVALID_ARG)


class LocalError(PyruntimeError):
    """We tried what the protocol between host and stub forbids; the channel has not sent anything."""


class PeerError(PyruntimeError):
    """The other end of a channel broke the protocol; the channel is of no further use."""


class OutOfMemoryError(PyruntimeError):
    """Shared memory of the size asked for cannot be had now."""
