# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a server answers as it should: one that answers quickly and wrongly would otherwise win."""

import json
import struct
import subprocess
import urllib.error
import urllib.request

import conditions
import kserve
import payloads
from servers import UNVERIFIED

STREAM_CHECK = """
import queue, sys, numpy as np, tritonclient.grpc as g
c, q, n = g.InferenceServerClient(sys.argv[1]), queue.Queue(), int(sys.argv[3])
c.start_stream(lambda result, error: q.put((result, error)))
i = [g.InferInput("COUNT", [1], "INT32"), g.InferInput("VALUE", [4], "FP32")]
i[0].set_data_from_numpy(np.array([n], np.int32)); i[1].set_data_from_numpy(np.arange(4, dtype=np.float32))
c.async_stream_infer(sys.argv[2], i)
for k in range(n):
    r, e = q.get(timeout=30)
    if e or r.as_numpy("INDEX").tolist() != [k] or r.as_numpy("OUT").tolist() != [0.0, 1.0, 2.0, 3.0]:
        sys.exit(f"response {k}: {e or r.get_response()}")
c.stop_stream()
"""


def verify(sc, server, opts):
    """None if the server answers the scenario's model with the right numbers, else what is wrong."""
    if sc.stream and sc.protocol == "http":
        return None  # its client looks at every stream
    if sc.stream:
        return verify_stream(sc, server, opts)
    if sc.model.startswith("sequence"):
        return verify_sequence(sc, server)
    requests = payloads.requests_of(sc)
    # Of many that differ a few, among them a short one and a long one.
    for inputs in requests[:: max(1, len(requests) // 4)]:
        problem = compare(server, to_send(sc, server, opts, inputs), wanted(inputs))
        if problem:
            return problem
    return None


def wanted(inputs):
    """One input comes back as it is, of two their sum and their difference."""
    if len(inputs) == 1:
        return {"OUTPUT0": inputs[0][1]}
    a, b = (values for _, values in inputs)
    return {"OUTPUT0": [p + q for p, q in zip(a, b)], "OUTPUT1": [p - q for p, q in zip(a, b)]}


def compare(server, message, want):
    """None if the server answers a request, a path with body and headers, with what is wanted, else what is wrong."""
    try:
        got = ask(server, *message)
    except urllib.error.HTTPError as e:
        return f"HTTP {e.code}: {e.read()[:200]!r}"
    except (OSError, ValueError, KeyError, struct.error) as e:
        return repr(e)
    for name, values in want.items():
        if [v if isinstance(v, str) else float(v) for v in got.get(name, [])] != values:
            return f"{name} is {str(got.get(name))[:80]}, not {str(values)[:80]}"
    return None


def verify_sequence(sc, server):
    """The model answers with the sum of what the requests of a sequence had so far."""
    path, headers = f"/v2/models/{sc.model}/infer", {"Content-Type": "application/json"}
    for value, total in ((1.0, 1.0), (2.0, 3.0)):
        document = {
            "parameters": {"sequence_id": 2**40, "sequence_start": value == total, "sequence_end": value != total},
            "inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}],
        }
        problem = compare(server, (path, json.dumps(document).encode(), headers), {"OUTPUT0": [total]})
        if problem:
            return problem
    return None


def to_send(sc, server, opts, inputs):
    """(path, body, headers) of the request, in a form that the server and the model take."""
    override = opts.post.get(server.name)
    if override:
        path, content_type, body_file = override
        with open(body_file, "rb") as f:
            return path, f.read(), {"Content-Type": content_type}
    path = f"/v2/models/{sc.model}/infer"
    more = conditions.headers_of(sc) if sc.protocol == "http" else {}
    if sc.model.startswith("add_sub_batch"):
        document = json.loads(kserve.json_body(inputs))
        for i in document["inputs"]:
            i["shape"] = [1] + i["shape"]
        return path, json.dumps(document).encode(), {"Content-Type": "application/json"}
    body, headers = kserve.request(inputs, as_json=server.json_only or sc.json)
    return path, body, headers | more


def ask(server, path, body, headers):
    """{name: values} of what the server answers."""
    url = f"{server.scheme}://127.0.0.1:{server.http}{path}"
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=30, context=UNVERIFIED) as r:
        return kserve.outputs(r.headers, r.read())


def verify_stream(sc, server, opts):
    p = subprocess.run(
        [opts.python, "-c", STREAM_CHECK, f"127.0.0.1:{server.grpc}", sc.model, str(min(sc.stream, 5))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return None if p.returncode == 0 else p.stderr.strip()[-300:]
