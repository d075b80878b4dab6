# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""KServe v2 requests and answers as bytes. Tensors are FP32, of one dimension."""

import json
import struct


def request(inputs, as_json=False):
    """(body, headers) of an inference. inputs: [(name, floats)]."""
    if as_json:
        return json_body(inputs), {"Content-Type": "application/json"}
    body, head = binary_body(inputs)
    return body, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}


def binary_body(inputs):
    """A binary request: (body, length of its JSON part)."""
    head = {
        "inputs": [
            {"name": n, "shape": [len(v)], "datatype": "FP32", "parameters": {"binary_data_size": 4 * len(v)}}
            for n, v in inputs
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(head, separators=(",", ":")).encode()
    return head + b"".join(struct.pack(f"<{len(v)}f", *v) for _, v in inputs), len(head)


def json_body(inputs):
    return json.dumps(
        {"inputs": [{"name": n, "shape": [len(v)], "datatype": "FP32", "data": v} for n, v in inputs]},
        separators=(",", ":"),
    ).encode()


def outputs(headers, body):
    """{name: floats} of a KServe v2 answer, JSON or binary, or of a bare JSON object."""
    head = headers.get("Inference-Header-Content-Length")
    message = json.loads(body[: int(head)] if head else body)
    if "outputs" not in message:
        return message
    out, at = {}, int(head or 0)
    for o in message["outputs"]:
        size = o.get("parameters", {}).get("binary_data_size")
        if size is None:
            out[o["name"]] = o["data"]
        else:
            out[o["name"]] = list(struct.unpack(f"<{size // 4}f", body[at : at + size]))
            at += size
    return out
