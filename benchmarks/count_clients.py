# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that send the same bytes in every run, so that calls for them can be counted; and that check the answers."""

import socket

import grpc
import kserve
from tritonclient.grpc import service_pb2


class HttpClient:
    """As many connections as requests in flight. All of a turn are sent before the first answer is read."""

    def __init__(self, sc, server, in_flight):
        self._path, self._as_json = f"/v2/models/{sc.model}/infer", sc.json
        self._sockets = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(in_flight)]
        self._files = [s.makefile("rb") for s in self._sockets]
        for s in self._sockets:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def infer(self, requests):
        messages = [self._message(inputs) for inputs in requests]
        for s, message in zip(self._sockets, messages):
            s.sendall(message)
        for file, inputs in zip(self._files, requests):
            check(self._answer(file), inputs)

    def _message(self, inputs):
        body, headers = kserve.request(inputs, as_json=self._as_json)
        head = f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        return (head + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode() + body

    def _answer(self, file):
        """The outputs of the next answer on a connection."""
        status = file.readline()
        lines = iter(lambda: file.readline().strip(), b"")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.decode().partition(":") for line in lines)}
        body = file.read(int(headers["content-length"]))
        if b" 200 " not in status:
            raise SystemExit(f"{status!r} {body[:300]!r}")
        length = headers.get("inference-header-content-length")
        return kserve.outputs({"Inference-Header-Content-Length": length}, body)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for closed in (*self._files, *self._sockets):
            closed.close()


class GrpcClient:
    """One connection, with as many calls at a time as requests in flight."""

    def __init__(self, sc, server, in_flight):
        self._model = sc.model
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}")
        self._call = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )

    def infer(self, requests):
        futures = [self._call.future(self._message(inputs)) for inputs in requests]
        for future, inputs in zip(futures, requests):
            response = future.result()
            contents = zip(response.outputs, response.raw_output_contents)
            check({o.name: kserve.unpacked(o.datatype, content) for o, content in contents}, inputs)

    def _message(self, inputs):
        r = service_pb2.ModelInferRequest(model_name=self._model)
        for name, values in inputs:
            r.inputs.add(name=name, datatype=kserve.datatype_of(values), shape=[len(values)])
            r.raw_input_contents.append(kserve.packed(values))
        return r

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._channel.close()


def check(outputs, inputs):
    """One input comes back as it is, of two their sum."""
    want = inputs[0][1] if len(inputs) == 1 else [a + b for a, b in zip(inputs[0][1], inputs[1][1])]
    if outputs.get("OUTPUT0") != want:
        raise SystemExit(f"a wrong answer: {str(outputs)[:300]}")
