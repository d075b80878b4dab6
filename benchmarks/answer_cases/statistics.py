# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics: what requests count. Times are only compared with 0."""

from answer_steps import Settled, Stream, call, call_infer, case, explain, get, infer, infer_message, raw_input, tensor

from answer_cases import reasons


def _of(model):
    return Settled(get(f"/v2/models/{model}/stats"))


CASES = [
    case("of a model without requests", _of("optional")),
    case("of a model without requests, grpc", call("ModelStatistics", name="optional")),
    case("of all models", get("/v2/models/stats")),
    case("of all models, grpc", call("ModelStatistics")),
    case("of two versions", _of("versions")),
    case("of one version", get("/v2/models/versions/versions/3/stats")),
    case("of one version, grpc", call("ModelStatistics", name="versions", version="3")),
    case("one request", infer("documented", tensor("IN", "FP32", [1, 2], [1, 2])), _of("documented")),
    case("a batch", infer("documented", tensor("IN", "FP32", [1] * 6, [3, 2])), _of("documented")),
    case("a refused request", infer("documented", tensor("IN", "FP32", [1] * 6, [3, 3])), _of("documented")),
    case("a response that is an error", infer("failing", tensor("HOW", "BYTES", ["NOT_FOUND"])), _of("failing")),
    case("an exception", infer("failing", tensor("HOW", "BYTES", ["model exception"])), _of("failing")),
    case("a decoupled model", Stream((infer_message("repeat", raw_input("COUNT", "INT32", [2])),)), _of("repeat")),
    case("a decoupled model without responses",
         Stream((infer_message("repeat", raw_input("COUNT", "INT32", [0])),)), _of("repeat")),
    case("a decoupled model, grpc", call("ModelStatistics", name="repeat")),
    case("over gRPC", call_infer("documented", raw_input("IN", "FP32", [1, 2], [1, 2])),
         call("ModelStatistics", name="documented")),
    case("of an unknown model", _of("nobody")),
    case("of an unknown version", get("/v2/models/variable/versions/7/stats")),
    case("of a version that is a word", get("/v2/models/variable/versions/x/stats")),
    case("of a model that did not load", _of("broken")),
    case("of a model that is not loaded", _of("later")),
    case("of an unknown model, grpc", call("ModelStatistics", name="nobody")),
    case("of an unknown version, grpc", call("ModelStatistics", name="variable", version="7")),
    case("of a version that is a word, grpc", call("ModelStatistics", name="variable", version="x")),
    case("of a model that did not load, grpc", call("ModelStatistics", name="broken")),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: ("a refused request",),
    reasons.FAILURES: ("a response that is an error", "an exception",),
    reasons.RESPONSE_STATS: ("a decoupled model*",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
