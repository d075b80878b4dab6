# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a server is asked in one run of compare.py, as its help says it."""

import re

from conditions import CONDITIONS

# perf_analyzer's synchronous HTTP client often hangs with 64 requests in flight,
# whatever the server; its asynchronous one does not.
HTTP64 = "http,c64,async"
# The length of texts that are all equally long: the mean of those that differ.
TEXT_BYTES = 1000

HTTP_TEXTS = ["texts,http,c16,{},wrk", "texts,http,c16,{},json"]
GRPC_TEXTS = ["texts,grpc,c16,{}"]
BESIDE_PLAIN = ["", ",tls", ",traces", ",pattern", ",forward", ",restricted"]
SCRAPED = "identity,http,c4,vary,wrk{}"

# Each text is what is measured in turns: one scenario, or several that are compared, with + between them.
PRESETS = {
    "quick": [f"add_sub,{p},repeat" for p in ("http,c1", "http,c16", "grpc,c1", "grpc,c16")],
    "small": [
        f"add_sub,{p},repeat"
        for p in ("http,c1", "http,c4", "http,c16", HTTP64, "grpc,c1", "grpc,c4", "grpc,c16", "grpc,c64")
    ],
    "batch": [
        f"{m},{p},repeat"
        for m in ("add_sub_batch", "add_sub_batch2")
        for p in ("http,c16", HTTP64, "grpc,c16", "grpc,c64")
    ],
    "payload": [
        f"identity,{p},c1,bytes={n},repeat{s}"
        for p in ("http", "grpc")
        for n in (65536, 1048576, 16777216)
        for s in ("", ",shm")
    ],
    "stream": [
        f"decoupled_repeat,{p},c{c},stream={n},repeat" for p in ("http", "grpc") for c in (1, 8) for n in (1, 100)
    ],
    "steps": [f"ensemble_pipeline,http,c{c},repeat" for c in (1, 8)]
    + ["ensemble_identity,http,c1,bytes=16777216,repeat"],
    # perf_analyzer sees in the configuration that a model takes sequences; concurrency is the number of these.
    "sequence": [f"sequence_sum,{p},c32,async,repeat" for p in ("http", "grpc")],
    # Servers need the option --cache-config.
    "cache": [f"add_sub_cached,{p},c{c},repeat" for p in ("http", "grpc") for c in (1, 16)],
    "vary": [
        *("identity,http,c16,vary,wrk", "identity,grpc,c16,vary", "identity,http,c16,vary,json"),
        *("add_sub,http,c16,vary,wrk", "add_sub,http,c16,vary,json", "add_sub,grpc,c16,vary"),
    ],
    "texts": [f"{t.format('vary')} + {t.format('repeat')}" for t in HTTP_TEXTS + GRPC_TEXTS],
    "conditions": [
        " + ".join(f"identity,{p},c16,vary,{client}{condition},first" for condition in BESIDE_PLAIN)
        for p, client in (("http", "wrk"), ("grpc", "pygrpc"))
    ],
    "scraped": [f"{SCRAPED.format('')} + {SCRAPED.format(',scraped')}"],
    "wrk": [f"add_sub,http,c{c},repeat,wrk{j}" for c in (1, 16, 64) for j in ("", ",json")],
}
PRESETS["all"] = [s for preset in list(PRESETS) if preset != "quick" for s in PRESETS[preset]]
# What the goals of goals.py are about, in some twelve minutes with five repeats and windows of 0.7 s.
PRESETS["requests"] = [
    *("identity,http,c16,vary,wrk", "identity,grpc,c16,vary"),
    *(
        "add_sub,http,c16,repeat,json",
        "add_sub,http,c16,repeat,wrk",
        "add_sub,http,c1,repeat",
        "add_sub,grpc,c1,repeat",
    ),
    *(s for preset in ("texts", "conditions", "scraped") for s in PRESETS[preset]),
]


def groups_of(texts):
    """The groups of scenarios that options name, each of which is measured in turns."""
    expanded = [s for text in texts for s in (PRESETS[text[7:]] if text.startswith("preset:") else [text])]
    return [[Scenario(s.strip()) for s in text.split("+")] for text in expanded]


def can_vary(model):
    """Whether requests can differ: in the numbers, in the length of a text, in the shape."""
    return model in ("add_sub", "texts") or model.endswith("identity")


class Scenario:
    def __init__(self, text):
        self.text = text
        parts = text.split(",")
        self.model, self.protocol = parts[0], parts[1]
        self.concurrency, self.bytes, self.stream = 1, 0, 0
        self.shm = self.wrk = self.is_async = self.json = self.pygrpc = self.first = False
        self.vary = None
        self.condition = ""
        for p in parts[2:]:
            if re.fullmatch(r"c\d+", p):
                self.concurrency = int(p[1:])
            elif p.startswith("bytes="):
                self.bytes = int(p[6:])
            elif p.startswith("stream="):
                self.stream = int(p[7:])
            elif p in ("shm", "wrk", "pygrpc", "first"):
                setattr(self, p, True)
            elif p == "async":
                self.is_async = True
            elif p == "json":
                self.json = self.wrk = True
            elif p in ("vary", "repeat") and self.vary is None:
                self.vary = p == "vary"
            elif p in CONDITIONS and not self.condition:
                self.condition = p
            else:
                raise SystemExit(f"unknown or second word {p!r} in scenario {text!r}")
        if self.model == "texts" and not self.vary:
            self.bytes = self.bytes or TEXT_BYTES
        problem = self._problem()
        if problem:
            raise SystemExit(f"scenario {text!r}: {problem}")

    def _problem(self):
        """What cannot be measured, or None."""
        if self.vary is None:
            return "say repeat (one request, again and again) or vary (another one each time)"
        if self.vary and not can_vary(self.model):
            return "vary is for add_sub, texts, identity and models whose names end in that"
        if self.wrk and self.protocol != "http":
            return "wrk speaks HTTP only"
        if self.pygrpc and self.protocol != "grpc":
            return "pygrpc speaks gRPC only"
        if self.condition in ("forward", "restricted") and self.protocol == "grpc" and not self.pygrpc:
            return "perf_analyzer sends no metadata, say pygrpc"
        return None
