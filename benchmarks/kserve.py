# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""KServe v2 requests and answers as bytes. Tensors are FP32 or BYTES, of one dimension."""

import json
import struct


def request(inputs, as_json=False):
    """(body, headers) of an inference. inputs: [(name, values)], all of a tensor's values numbers or texts."""
    if as_json:
        return json_body(inputs), {"Content-Type": "application/json"}
    body, head = binary_body(inputs)
    return body, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}


def binary_body(inputs):
    """A binary request: (body, length of its JSON part)."""
    contents = [packed(values) for _, values in inputs]
    head = {
        "inputs": [
            {**described(name, values), "parameters": {"binary_data_size": len(content)}}
            for (name, values), content in zip(inputs, contents)
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(head, separators=(",", ":")).encode()
    return head + b"".join(contents), len(head)


def json_body(inputs):
    return json.dumps(
        {"inputs": [{**described(name, values), "data": values} for name, values in inputs]},
        separators=(",", ":"),
    ).encode()


def datatype_of(values):
    return "BYTES" if isinstance(values[0], str) else "FP32"


def described(name, values):
    return {"name": name, "shape": [len(values)], "datatype": datatype_of(values)}


def packed(values):
    """A tensor's contents: numbers, or each text behind its length."""
    if datatype_of(values) == "FP32":
        return struct.pack(f"<{len(values)}f", *values)
    texts = [value.encode() for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def unpacked(datatype, content):
    if datatype != "BYTES":
        return list(struct.unpack(f"<{len(content) // 4}f", content))
    texts, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at)
        texts.append(content[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts


def outputs(headers, body):
    """{name: values} of a KServe v2 answer, JSON or binary, or of a bare JSON object."""
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
            out[o["name"]] = unpacked(o["datatype"], body[at : at + size])
            at += size
    return out
