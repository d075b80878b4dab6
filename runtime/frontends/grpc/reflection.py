# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Server reflection: describes the services and their messages to tools.

Both versions of the protocol differ only in their names. The answers come from the server's own descriptors and do not
depend on its models.
"""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.config.schema import POOL
from pyruntime.runtime.frontends.grpc.method import End, Send
from pyruntime.runtime.frontends.grpc.schema import SERVICES, Message, MessageClass
from pyruntime.runtime.frontends.grpc.status import Status

# The answer for an unknown name repeats this many of its characters.
_NAME_CHARACTERS_MAX = 200


class Reflection:
    """One call; `response` is the class of its version's responses."""

    def __init__(self, response: MessageClass, state: ServerState, send: Send, end: End) -> None:
        self._response = response
        self._send = send
        self._end = end

    def message(self, request: Message) -> None:
        """See Stream."""
        response = self._response(valid_host=request.host, original_request=request)
        try:
            _answer(request, response)
        except KeyError as exc:
            response.error_response.error_code = Status.NOT_FOUND
            response.error_response.error_message = f"not found: {exc.args[0]}"
        self._send(response)

    def client_ended(self) -> None:
        """See Stream."""
        self._end(None)

    def cancelled(self) -> None:
        """See Stream."""


def _answer(request: Message, response: Message) -> None:
    """Fill in the response. Raises KeyError, with the name, for an unknown name."""
    kind = request.WhichOneof("message_request")
    match kind:
        case "file_by_filename":
            _add_files(response, _file(request.file_by_filename))
        case "file_containing_symbol":
            _add_files(response, _file_of(request.file_containing_symbol))
        case "list_services":
            for service in SERVICES:
                response.list_services_response.service.add(name=service.full_name)
        case "all_extension_numbers_of_type":
            # proto3 has no extensions, but an unknown message is an error.
            name = request.all_extension_numbers_of_type
            response.all_extension_numbers_response.base_type_name = _message_name(name)
        case "file_containing_extension":
            extension = request.file_containing_extension
            raise _unknown(f"{extension.containing_type} {extension.extension_number}")
        case _:
            response.error_response.error_code = Status.INVALID_ARGUMENT
            response.error_response.error_message = "the request asks for nothing"


def _file(name: str) -> FileDescriptor:
    try:
        return POOL.FindFileByName(name)
    except KeyError:
        raise _unknown(name) from None


def _file_of(symbol: str) -> FileDescriptor:
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        pass
    # The pool does not find methods.
    service, _, method = symbol.rpartition(".")
    for each in SERVICES:
        if each.full_name == service and method in each.methods_by_name:
            return each.file
    raise _unknown(symbol)


def _message_name(name: str) -> str:
    try:
        return POOL.FindMessageTypeByName(name).full_name
    except KeyError:
        raise _unknown(name) from None


def _unknown(name: str) -> KeyError:
    return KeyError(name[:_NAME_CHARACTERS_MAX])


def _add_files(response: Message, file: FileDescriptor) -> None:
    """Add a file and its dependencies, each once."""
    due, seen = [file], set()
    while due:
        file = due.pop()
        if file.name not in seen:
            seen.add(file.name)
            response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
            due += file.dependencies
