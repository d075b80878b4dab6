# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends the steps of a case to one server. The answers are values that can be compared."""

import http.client
import io
import json
import os
import socket
import time

import grpc
from answer_steps import Grpc, Http, Memory, Raw, Settled, Stream
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

# Seconds that a server may take for a step.
TIMEOUT_S = 20
# Seconds in which a connection that the server does not close stays without another answer, and statistics without
# another count.
QUIET_S = 0.5
_SERVICE = "/inference.GRPCInferenceService/"
# Headers of an answer that are compared.
_HEADERS = ("Content-Encoding", "Allow", "Accept-Encoding")


class _Kept(io.BufferedReader):
    """What several responses of one connection are read from, one after the other."""

    def makefile(self, mode):
        return self

    def close(self):
        """A response closes it, but others may follow."""


class Client:
    """The client of one server, which keeps one channel for gRPC. Each step over HTTP has a connection of its own."""

    def __init__(self, http_port, grpc_port):
        self._http = http_port
        self._channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", [("grpc.max_receive_message_length", -1)])

    def close(self):
        self._channel.close()

    def answers(self, steps):
        """What the server answers to each step; a step without an answer has the reason."""
        found = []
        for step in steps:
            try:
                found.append(_SENDERS[type(step)](self, step))
            except (OSError, http.client.HTTPException, ValueError) as exc:
                found.append({"no answer": type(exc).__name__})
        return found

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self._http), TIMEOUT_S)

    def _http_request(self, step):
        headers = {"Host": "localhost", **dict(step.headers)}
        if not {"Content-Length", "Transfer-Encoding"} & headers.keys() and (step.body or step.method == "POST"):
            headers["Content-Length"] = str(len(step.body))
        fields = [f"{name}: {value}" for name, value in headers.items()]
        lines = [f"{step.method} {step.path} HTTP/1.1", *fields, "", ""]
        with self._connect() as sock:
            sock.sendall("\r\n".join(lines).encode() + step.body)
            return _read(sock, step.method)

    def _raw(self, step):
        """The answers of one connection, and whether it was closed."""
        found = []
        with self._connect() as sock:
            file = _Kept(socket.SocketIO(sock, "rb"))
            sock.sendall(step.data)
            while True:
                sock.settimeout(QUIET_S if found else TIMEOUT_S)
                try:
                    if not file.peek(1):
                        return {"answers": found, "closed": True}
                    found.append(_read(file, "GET"))
                except TimeoutError:
                    return {"answers": found, "closed": False}
                except ConnectionResetError:
                    return {"answers": found, "closed": True}

    def _call(self, step):
        response = getattr(service_pb2, f"{step.method}Response")
        procedure = self._channel.unary_unary(
            _SERVICE + step.method, type(step.message).SerializeToString, response.FromString
        )
        try:
            return _message(procedure(step.message, timeout=TIMEOUT_S, metadata=step.metadata))
        except grpc.RpcError as error:
            return {"code": error.code().name, "message": error.details()}

    def _stream(self, step):
        procedure = self._channel.stream_stream(
            _SERVICE + "ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )
        responses = procedure(iter(step.messages), timeout=TIMEOUT_S, metadata=step.metadata)
        found = []
        try:
            found.extend(_message(response) for response in responses)
        except grpc.RpcError as error:
            return {"responses": found, "code": error.code().name, "message": error.details()}
        return {"responses": found, "code": "OK"}

    def _settled(self, step):
        """The answer to the step within, once it does not change any more."""
        found = None
        while True:
            earlier, found = found, _SENDERS[type(step.step)](self, step.step)
            if found == earlier:
                return found
            time.sleep(QUIET_S)

    def _memory(self, step):
        path = "/dev/shm/" + step.key.lstrip("/")
        if step.contents is not None:
            with open(path, "wb") as file:
                file.write(step.contents)
            return "written"
        with open(path, "rb") as file:
            return file.read(step.size).hex()


_SENDERS = {
    Http: Client._http_request,
    Raw: Client._raw,
    Grpc: Client._call,
    Stream: Client._stream,
    Memory: Client._memory,
    Settled: Client._settled,
}


def remove_memory(steps):
    """Remove the shared memory that steps have made."""
    for key in {step.key for step in steps if isinstance(step, Memory)}:
        os.unlink("/dev/shm/" + key.lstrip("/"))


def wait_until_loaded(client, models, patience_s=120):
    """Wait until a server has loaded models. Raises TimeoutError."""
    message = service_pb2.RepositoryIndexRequest()
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        answer = client._call(Grpc("RepositoryIndex", message))
        ready = {each["name"] for each in answer.get("models", ()) if each.get("state") == "READY"}
        if set(models) <= ready:
            return
        time.sleep(0.1)
    raise TimeoutError(f"not ready after {patience_s} s: {sorted(set(models) - ready)}")


def _read(sock, method):
    response = http.client.HTTPResponse(sock, method=method)
    response.begin()
    body = response.read()
    found = {"status": response.status}
    found |= {name: response.headers[name] for name in _HEADERS if name in response.headers}
    if response.status == 200 and body:  # Triton leaves that of errors to libevent
        found["Content-Type"] = response.headers["Content-Type"]
    length = response.headers.get("Inference-Header-Content-Length")
    if length is not None:
        found["document"] = json.loads(body[: int(length)])
        found["contents"] = body[int(length) :].hex()
    elif response.headers.get("Content-Encoding"):
        found["compressed"] = len(body) > 0
    elif response.headers.get_content_type() == "text/event-stream":
        found["events"] = [json.loads(line[len("data:") :]) for line in body.decode().split("\n") if line.strip()]
    else:
        found["document"] = _document(body)
    return found


def _document(body):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("latin-1")


def _message(message):
    return MessageToDict(message, preserving_proto_field_name=True)
