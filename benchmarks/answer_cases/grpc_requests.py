# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong requests over gRPC, and streams."""

from answer_steps import Stream, call_infer, case, explain, infer_message, raw_input, typed_input

from answer_cases import reasons

GOOD = raw_input("IN", "INT32", [1, 2], [1, 2])


def _repeat(count, **more):
    return infer_message("repeat", raw_input("COUNT", "INT32", [count]), **more)


def _entry(*of):
    """An input without contents."""
    return raw_input(*of, b"")[0] if len(of) == 2 else raw_input(of[0], of[1], b"", of[2])[0]


CASES = [
    case("no model name", call_infer("", GOOD)),
    case("an unknown model", call_infer("nobody", GOOD)),
    case("a model that did not load", call_infer("broken", GOOD)),
    case("a model that is not loaded", call_infer("later", GOOD)),
    *(case(f"version {version!r}", call_infer("variable", GOOD, model_version=version))
      for version in ("7", "x", "0", "-1", "1x", "99999999999999999999")),
    case("a version that the policy leaves out",
         call_infer("versions", raw_input("IN", "INT32", [1]), model_version="2")),
    case("a decoupled model", call_infer("repeat", raw_input("COUNT", "INT32", [1]))),
    case("no inputs", call_infer("variable")),
    case("an input is missing", call_infer("add_sub", raw_input("INPUT0", "FP32", [1] * 4))),
    case("an input is too many", call_infer("variable", GOOD, raw_input("MORE", "INT32", [1]))),
    case("an input twice", call_infer("variable", GOOD, GOOD)),
    case("an input twice of two",
         call_infer("add_sub", raw_input("INPUT0", "FP32", [1] * 4), raw_input("INPUT0", "FP32", [1] * 4), id="mine")),
    case("an unknown input", call_infer("variable", raw_input("NOBODY", "INT32", [1, 2], [1, 2]))),
    case("an unknown output", call_infer("variable", GOOD, outputs=["NOBODY"])),
    case("an output twice", call_infer("variable", GOOD, outputs=["OUT", "OUT"])),
    case("an output twice, with an id", call_infer("variable", GOOD, outputs=["OUT", "OUT"], id="mine")),
    case("an unknown datatype", call_infer("variable", raw_input("IN", "INT128", bytes(8), [1, 2]))),
    case("no datatype", call_infer("variable", raw_input("IN", "", bytes(8), [1, 2]))),
    case("another datatype", call_infer("variable", raw_input("IN", "INT64", [1, 2], [1, 2]))),
    case("-1 in the shape", call_infer("variable", raw_input("IN", "INT32", bytes(8), [-1, 2]))),
    case("-2 in the shape", call_infer("variable", raw_input("IN", "INT32", bytes(8), [-2, 2]))),
    case("too many elements in all", call_infer("variable", raw_input("IN", "INT32", bytes(8), [2**62, 4]))),
    case("too many bytes in all", call_infer("variable", raw_input("IN", "INT32", bytes(8), [2**61, 1]))),
    case("too many strings in all", call_infer("strings", raw_input("IN", "BYTES", ["a"], [2**62]))),
    case("too few dimensions", call_infer("variable", raw_input("IN", "INT32", [1, 2], [2]))),
    case("a fixed dimension is wrong", call_infer("fixed", raw_input("IN", "FP32", [1] * 6, [3, 2]))),
    case("a batch that is too large", call_infer("batched", raw_input("IN", "FP32", [1] * 36, [9, 4]))),
    case("no batch dimension", call_infer("batched", raw_input("IN", "FP32", [1] * 4), id="mine")),
    case("too few bytes", call_infer("variable", raw_input("IN", "INT32", bytes(4), [1, 2]))),
    case("too many bytes", call_infer("variable", raw_input("IN", "INT32", bytes(12), [1, 2]))),
    case("no contents", call_infer("variable", _entry("IN", "INT32", [1, 2]))),
    case("raw contents of one of two inputs",
         call_infer("add_sub", raw_input("INPUT0", "FP32", [1] * 4), _entry("INPUT1", "FP32", [4]))),
    case("raw and typed contents", call_infer(
        "add_sub", raw_input("INPUT0", "FP32", [1] * 4), typed_input("INPUT1", "FP32", [1] * 4))),
    case("typed contents of another field",
         call_infer("variable", typed_input("IN", "INT32", [1, 2], [1, 2], "int64_contents"))),
    case("typed contents of FP16", call_infer("every", typed_input("X_FP16", "FP16", [1.0], [1], "fp32_contents"))),
    case("too few typed contents", call_infer("variable", typed_input("IN", "INT32", [1], [1, 2]))),
    case("too many typed contents", call_infer("variable", typed_input("IN", "INT32", [1, 2, 3], [1, 2]))),
    case("typed contents out of range", call_infer("every", typed_input("X_INT8", "INT8", [300]))),
    case("half an element of BYTES", call_infer("strings", raw_input("IN", "BYTES", b"\5\0\0\0ab", [1]))),
    case("half a length of BYTES", call_infer("strings", raw_input("IN", "BYTES", b"\5\0", [1]))),
    case("too few elements of BYTES", call_infer("strings", raw_input("IN", "BYTES", ["a"], [2]))),
    case("too many elements of BYTES", call_infer("strings", raw_input("IN", "BYTES", ["a", "b"], [1]))),
    *(case(f"error {code}", call_infer("failing", raw_input("HOW", "BYTES", [code])))
      for code in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS",
                   "CANCELLED")),
    case("an exception of the model", call_infer("failing", raw_input("HOW", "BYTES", ["model exception"]))),
    case("a response without outputs", call_infer("failing", raw_input("HOW", "BYTES", ["no outputs"]))),
    case("an unknown compression", call_infer("variable", GOOD, metadata=(("grpc-encoding", "br"),))),
    # Streams.
    case("a stream without requests", Stream(())),
    case("a stream of three responses", Stream((_repeat(3, id="1"),))),
    case("a stream without responses", Stream((_repeat(0, id="1"),))),
    case("a stream with an empty final response",
         Stream((_repeat(2, id="1", parameters={"triton_enable_empty_final_response": True}),))),
    case("no responses but the empty final one",
         Stream((_repeat(0, id="1", parameters={"triton_enable_empty_final_response": True}),))),
    case("a stream of a model that is not decoupled", Stream((infer_message("variable", GOOD, id="1"),))),
    case("two requests in a stream", Stream((infer_message("variable", GOOD, id="1"),
         infer_message("variable", GOOD, id="2")))),
    case("an error in the middle", Stream((infer_message("repeat", raw_input("COUNT", "INT32", [3]),
         raw_input("FAILS_AT", "INT32", [1]), id="1"),))),
    case("an unknown model in a stream",
         Stream((infer_message("nobody", GOOD, id="1"), infer_message("variable", GOOD)))),
    case("a wrong request in a stream", Stream((infer_message("variable", raw_input("IN", "INT32", [1], [1]), id="1"),
         infer_message("variable", GOOD)))),
    case("an output twice in a stream", Stream((infer_message("variable", GOOD, outputs=["OUT", "OUT"], id="1"),))),
    case("an error of the model in a stream",
         Stream((infer_message("failing", raw_input("HOW", "BYTES", ["NOT_FOUND"]), id="1"),))),
    case("an exception of the model in a stream",
         Stream((infer_message("failing", raw_input("HOW", "BYTES", ["model exception"]), id="1"),))),
]  # fmt: skip

DIFFERENT = {
    reasons.VERSIONS: ("version '0'", "version '1x'",),
    reasons.VERSION_MESSAGE: ("version '-1'",),
    reasons.ORDER: ("an input is too many",),
    reasons.TWICE: ("an output twice*",),
    reasons.TOO_MANY: ("-2 in the shape", "too many elements in all", "too many bytes in all",),
    reasons.TYPED_RANGE: ("typed contents out of range",),
    reasons.STREAM_VERSIONS: (
        "a stream with an empty final response", "no responses but the empty final one", "an error in the middle",
        "an error of the model in a stream", "an exception of the model in a stream",
    ),
    reasons.STREAM_ERRORS: ("an unknown model in a stream", "a wrong request in a stream",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
