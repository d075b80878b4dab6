# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The client of benchmarks/gpu.py, over HTTP and in JSON."""

import http.client
import json
import re

# How long the server may take to be ready, and to answer, in seconds: each stub imports torch.
ANSWER_S_MAX = 300.0


class Failure(Exception):
    """The server refused a request, or answered wrongly."""


class Client:
    """The server's client."""

    def __init__(self, server):
        self._http = http.client.HTTPConnection("127.0.0.1", server.http, timeout=ANSWER_S_MAX)
        self._metrics = http.client.HTTPConnection("127.0.0.1", server.metrics, timeout=ANSWER_S_MAX)

    def post(self, path, document):
        """The answer to a request. Raises Failure."""
        try:
            self._http.request("POST", path, json.dumps(document))
            answer = self._http.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as exc:
            self._http.close()  # the next request has another connection
            raise Failure(f"{path}: {exc!r}") from exc
        if answer.status != 200:
            raise Failure(f"{path}: {body.decode(errors='replace')[:500]}")
        return json.loads(body) if body else {}

    def infer(self, model, inputs, id=""):
        """The outputs by their names, and the parameters."""
        answer = self.post(f"/v2/models/{model}/infer", {"id": id, "inputs": inputs})
        return {each["name"]: each["data"] for each in answer["outputs"]}, answer.get("parameters", {})

    def shared_bytes(self, models):
        """The shared main memory that the server has for these models."""
        self._metrics.request("GET", "/metrics")
        page = self._metrics.getresponse().read().decode()
        found = re.findall(r'^pyruntime_shared_memory_bytes\{model="(\w+)".*\} (\S+)$', page, re.MULTILINE)
        return sum(float(value) for model, value in found if model in models)
