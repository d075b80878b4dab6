# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a server is asked in one run of compare.py, as its help says it."""

import re

# perf_analyzer's synchronous HTTP client often hangs with 64 requests in flight,
# whatever the server; its asynchronous one does not.
HTTP64 = "http,c64,async"

PRESETS = {
    "quick": ["add_sub,http,c1", "add_sub,http,c16", "add_sub,grpc,c1", "add_sub,grpc,c16"],
    "small": [
        f"add_sub,{p}" for p in ("http,c1", "http,c4", "http,c16", HTTP64, "grpc,c1", "grpc,c4", "grpc,c16", "grpc,c64")
    ],
    "batch": [
        f"{m},{p}" for m in ("add_sub_batch", "add_sub_batch2") for p in ("http,c16", HTTP64, "grpc,c16", "grpc,c64")
    ],
    "payload": [
        f"identity,{p},c1,bytes={n}{s}"
        for p in ("http", "grpc")
        for n in (65536, 1048576, 16777216)
        for s in ("", ",shm")
    ],
    "stream": [f"decoupled_repeat,{p},c{c},stream={n}" for p in ("http", "grpc") for c in (1, 8) for n in (1, 100)],
    "steps": [f"ensemble_pipeline,http,c{c}" for c in (1, 8)] + ["ensemble_identity,http,c1,bytes=16777216"],
    # perf_analyzer sees in the configuration that a model takes sequences; concurrency is the number of these.
    "sequence": [f"sequence_sum,{p},c32,async" for p in ("http", "grpc")],
    # perf_analyzer repeats one request. Servers need the option --cache-config.
    "cache": [f"add_sub_cached,{p},c{c}" for p in ("http", "grpc") for c in (1, 16)],
    # All others repeat one request.
    "vary": ["identity,http,c16,bytes=64,vary,wrk", "identity,grpc,c16,bytes=64,vary"],
    "wrk": [f"add_sub,http,c{c},wrk{j}" for c in (1, 16, 64) for j in ("", ",json")],
}
PRESETS["all"] = [
    s for k in ("small", "batch", "payload", "stream", "steps", "sequence", "cache", "vary", "wrk") for s in PRESETS[k]
]


class Scenario:
    def __init__(self, text):
        self.text = text
        parts = text.split(",")
        self.model, self.protocol = parts[0], parts[1]
        self.concurrency, self.bytes, self.stream = 1, 0, 0
        self.shm = self.wrk = self.is_async = self.json = self.pygrpc = self.vary = False
        for p in parts[2:]:
            if re.fullmatch(r"c\d+", p):
                self.concurrency = int(p[1:])
            elif p.startswith("bytes="):
                self.bytes = int(p[6:])
            elif p.startswith("stream="):
                self.stream = int(p[7:])
            elif p == "shm":
                self.shm = True
            elif p == "wrk":
                self.wrk = True
            elif p == "async":
                self.is_async = True
            elif p == "json":
                self.json = self.wrk = True
            elif p == "pygrpc":
                self.pygrpc = True
            elif p == "vary":
                self.vary = True
            else:
                raise SystemExit(f"unknown word {p!r} in scenario {text!r}")
