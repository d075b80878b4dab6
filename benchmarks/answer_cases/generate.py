# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""generate and generate_stream."""

from answer_steps import Http, case, explain, generate, generate_stream, get

from answer_cases import reasons

PROMPT = {"PROMPT": "hello"}
GOOD = generate("chat", PROMPT)

CASES = [
    case("an input", GOOD),
    case("an id", generate("chat", {"id": "mine", **PROMPT})),
    case("all inputs", generate("chat", {**PROMPT, "LOUD": True, "NUMBERS": [1, 2, 3]})),
    case("a list of one", generate("chat", {"PROMPT": ["hello"]})),
    case("a bare value for a variable dimension", generate("chat", {**PROMPT, "NUMBERS": 5})),
    case("an empty list for a variable dimension", generate("chat", {**PROMPT, "NUMBERS": []})),
    case("a nested list of one", generate("chat", {**PROMPT, "NUMBERS": [[1]]})),
    case("a nested list", generate("chat", {**PROMPT, "NUMBERS": [[1, 2], [3, 4]]})),
    case("inputs among the parameters", generate("chat", {"parameters": {**PROMPT, "LOUD": True}})),
    case("parameters", generate("chat", {**PROMPT, "a": "x", "b": 1, "c": True})),
    case("parameters in an object", generate("chat", {**PROMPT, "parameters": {"a": "x", "b": 1, "c": True}})),
    case("a double", generate("chat", {**PROMPT, "temperature": 0.5})),
    case("parameters of a sequence", generate("chat", {**PROMPT, "sequence_id": 5, "timeout": 7, "priority": 1})),
    case("a reserved parameter", generate("chat", {**PROMPT, "triton_mine": 1})),
    case("a list as a parameter", generate("chat", {**PROMPT, "stop": ["a", "b"]})),
    case("an object as a parameter", generate("chat", {**PROMPT, "format": {"type": "json"}})),
    case("null as a parameter", generate("chat", {**PROMPT, "stop": None})),
    case("a header", generate("chat", PROMPT, ("X-Mine", "a"))),
    case("a version", Http("POST", "/v2/models/chat/versions/1/generate", GOOD.body)),
    case("an empty body", generate("chat", b"")),
    case("no JSON", generate("chat", b"hello")),
    case("a list as the document", generate("chat", [])),
    case("an empty object", generate("chat", {})),
    case("id is a number", generate("chat", {"id": 1, **PROMPT})),
    case("parameters are a list", generate("chat", {**PROMPT, "parameters": [1]})),
    case("a number for a text", generate("chat", {"PROMPT": 1})),
    case("null for a text", generate("chat", {"PROMPT": None})),
    case("an object for a text", generate("chat", {"PROMPT": {}})),
    case("a text for a boolean", generate("chat", {**PROMPT, "LOUD": "yes"})),
    case("a number for a boolean", generate("chat", {**PROMPT, "LOUD": 1})),
    case("a text for an integer", generate("chat", {**PROMPT, "NUMBERS": ["1"]})),
    case("a double for an integer", generate("chat", {**PROMPT, "NUMBERS": [1.5]})),
    case("two values for one", generate("chat", {"PROMPT": ["a", "b"]})),
    case("no values for one", generate("chat", {"PROMPT": []})),
    case("an input twice", generate("chat", b'{"PROMPT": "a", "PROMPT": "b"}')),
    case("a parameter twice", generate("chat", b'{"PROMPT": "a", "x": 1, "x": 2}')),
    case("an input beside and among the parameters", generate("chat", {**PROMPT, "parameters": {"PROMPT": "b"}})),
    case("an unknown model", generate("nobody", PROMPT)),
    case("an unknown version", Http("POST", "/v2/models/chat/versions/7/generate", GOOD.body)),
    case("a model that did not load", generate("broken", {"IN": 1})),
    case("GET", get("/v2/models/chat/generate")),
    case("a compressed body", generate("chat", PROMPT, ("Content-Encoding", "gzip"))),
    case("an answer that may be compressed", generate("chat", PROMPT, ("Accept-Encoding", "gzip"))),
    case("a vector of fixed size", generate("fixed", {"IN": [1, 2, 3, 4, 5, 6]})),
    case("a vector that is too short", generate("fixed", {"IN": [1, 2, 3]})),
    case("a batch of one", generate("batched", {"IN": [1, 2, 3, 4]})),
    case("a batch of two", generate("batched", {"IN": [1, 2, 3, 4, 5, 6, 7, 8]})),
    case("FP16", generate("every", {"X_FP16": 1.0})),
    case("256 for UINT8", generate("every", {"X_UINT8": 256})),
    case("an error of the model", generate("failing", {"HOW": "NOT_FOUND"})),
    case("an exception of the model", generate("failing", {"HOW": "model exception"})),
    case("a decoupled model with one response", generate("repeat", {"COUNT": 1})),
    case("a decoupled model with two responses", generate("repeat", {"COUNT": 2})),
    case("a decoupled model without responses", generate("repeat", {"COUNT": 0})),
    case("a decoupled model with an error", generate("repeat", {"COUNT": 1, "FAILS_AT": 0})),
    case("stream: one response", generate_stream("chat", PROMPT)),
    case("stream: three responses", generate_stream("repeat", {"COUNT": 3, "id": "mine"})),
    case("stream: no responses", generate_stream("repeat", {"COUNT": 0})),
    case("stream: an error in the middle", generate_stream("repeat", {"COUNT": 3, "FAILS_AT": 1})),
    case("stream: an error at the beginning", generate_stream("repeat", {"COUNT": 3, "FAILS_AT": 0})),
    case("stream: an error of the model", generate_stream("failing", {"HOW": "NOT_FOUND"})),
    case("stream: a wrong request", generate_stream("chat", {"PROMPT": 1})),
    case("stream: a missing input", generate_stream("chat", {})),
    case("stream: an unknown model", generate_stream("nobody", PROMPT)),
    case("stream: GET", get("/v2/models/chat/generate_stream")),
]

DIFFERENT = {
    reasons.JSON: (
        "no JSON", "a list as the document", "id is a number", "parameters are a list", "a number for a text",
        "null for a text", "an object for a text", "a text for a boolean", "a number for a boolean",
        "a text for an integer", "a double for an integer", "stream: a wrong request", "an empty body",
    ),
    reasons.NESTED: ("a nested list",),
    reasons.JSON_TEXT: ("a list as a parameter", "an object as a parameter",),
    reasons.FORWARDED: ("a header",),
    reasons.REPEATED: ("a parameter twice",),
    reasons.COMPRESSED: ("a compressed body",),
    reasons.FP16: ("FP16",),
    reasons.RANGE: ("256 for UINT8",),
    reasons.GENERATE_STATUS: (
        "an error of the model", "an exception of the model", "a decoupled model with two responses",
        "a decoupled model without responses", "a decoupled model with an error", "stream: an error at the beginning",
        "stream: an error of the model",
    ),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
