# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""All exceptions of pyruntime, by who caused them. (pure)

PyruntimeError
├── InferenceError      a client's request fails, with Triton's error code and the message for the client
├── LoadError           a model cannot be served; the log and the repository index show the message to its author
│   ├── ConfigError     ... because of its configuration
│   └── LaunchError     ... because the server lacks what a process needs; it may have it later
├── LocalError          this process tried to break its own protocol: a bug
├── PeerError           the other process broke the protocol, and must not be trusted any further
└── OutOfMemoryError    shared memory is full, or a named limit is reached
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Triton's error codes, with the numbers of `TritonError` in a model.py.

    DEADLINE_EXCEEDED is not Triton's: an execution has taken longer than its model permits.
    """

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8

    @property
    def words(self) -> str:
        """Triton's name of the code, as a prefix of messages: `Invalid argument`."""
        return "Invalid argument" if self is Code.INVALID_ARG else self.name.replace("_", " ").capitalize()


class PyruntimeError(Exception):
    """The base class of all errors that pyruntime raises on purpose."""


class InferenceError(PyruntimeError):
    """One request fails, and no other. The client receives the message unchanged."""

    def __init__(self, message: str, code: Code = Code.INTERNAL) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def __repr__(self) -> str:
        return f"InferenceError({self.message!r}, {self.code.name})"


class LoadError(PyruntimeError):
    """A model, or one version of it, cannot be served. The message is for the author of the model.

    `was_logged`: the log has it already, with its traceback. `excerpt` shows people the place in a file, or is "".
    """

    def __init__(
        self, message: str, code: Code = Code.INTERNAL, *, was_logged: bool = False, excerpt: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.was_logged = was_logged
        self.excerpt = excerpt


class ConfigError(LoadError):
    """A model's configuration is not valid."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.INVALID_ARG)


class LaunchError(LoadError):
    """There are no descriptors, processes or memory to start a process now. No model is to blame."""


class LocalError(PyruntimeError):
    """This process tried something that the protocol between host and stub forbids; nothing was sent."""


class PeerError(PyruntimeError):
    """The other end of a channel broke the protocol; the channel cannot be used any more."""


class OutOfMemoryError(PyruntimeError):
    """There is no shared memory of the requested size now."""
