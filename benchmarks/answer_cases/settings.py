# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of traces and of the log. Those of the log are a restricted API."""

from answer_steps import LOG_SETTING, SETTING, Http, call, case, explain, get, post

from answer_cases import reasons

TRACE, OF_MODEL, LOGGING = "/v2/trace/setting", "/v2/models/variable/trace/setting", "/v2/logging"
KEY = ("triton-grpc-protocol-admin", "key")
ADMIN = ("admin", "key")

USUAL = {"log_info": True, "log_warning": True, "log_verbose_level": 0, "log_format": "default"}


def _trace(**settings):
    return call("TraceSetting", settings={name: SETTING(value=values) for name, values in settings.items()})


def _log(**settings):
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    made = {name: LOG_SETTING(**{kinds[type(value)]: value}) for name, value in settings.items()}
    return call("LogSettings", (KEY,), settings=made)


RESET = post(TRACE, {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"})

CASES = [
    case("trace: all", get(TRACE)),
    case("trace: of a model", get(OF_MODEL)),
    case("trace: of an unknown model", get("/v2/models/nobody/trace/setting")),
    case("trace: all, grpc", call("TraceSetting")),
    case("trace: of a model, grpc", call("TraceSetting", model_name="variable")),
    case("trace: of an unknown model, grpc", call("TraceSetting", model_name="nobody")),
    *(
        case(f"trace: {settings}", post(TRACE, settings), get(TRACE), get(OF_MODEL), RESET)
        for settings in (
            {"trace_level": ["TIMESTAMPS"]}, {"trace_level": ["TIMESTAMPS", "TENSORS"]}, {"trace_level": ["OFF"]},
            {"trace_level": "TIMESTAMPS"}, {"trace_level": []}, {"trace_level": ["NOBODY"]}, {"trace_level": None},
            {"trace_rate": "5"}, {"trace_rate": 5}, {"trace_rate": "x"}, {"trace_rate": "5x"}, {"trace_rate": "-1"},
            {"trace_rate": None}, {"trace_count": "3"}, {"trace_count": "-1"}, {"trace_count": "-2"},
            {"trace_count": "x"}, {"log_frequency": "7"}, {"log_frequency": "-7"}, {"trace_file": "/tmp/mine"},
            {"trace_mode": "opentelemetry"}, {"nobody": "1"}, {}, [],
        )
    ),
    case("trace: no document", post(TRACE, b"")),
    case("trace: no JSON", post(TRACE, b"hello")),
    case("trace: a model of its own", post(OF_MODEL, {"trace_rate": "7"}), get(OF_MODEL), get(TRACE),
         post(OF_MODEL, {"trace_rate": None}), get(OF_MODEL)),
    case("trace: an unknown model is set", post("/v2/models/nobody/trace/setting", {"trace_rate": "7"})),
    case("trace: set, grpc", _trace(trace_rate=["9"]), call("TraceSetting"), RESET),
    case("trace: cleared, grpc", _trace(trace_rate=["9"]), _trace(trace_rate=[]), RESET),
    case("trace: two rates, grpc", _trace(trace_rate=["9", "8"]), RESET),
    case("trace: a word as a rate, grpc", _trace(trace_rate=["x"]), RESET),
    case("trace: an unknown setting, grpc", _trace(nobody=["x"])),
    case("trace: a file, grpc", _trace(trace_file=["/tmp/mine"])),
    case("trace: DELETE", Http("DELETE", TRACE)),
    case("log: without the header", get(LOGGING)),
    case("log: with another value", get(LOGGING, ("admin", "no"))),
    case("log: all", get(LOGGING, ADMIN)),
    case("log: without the metadata, grpc", call("LogSettings")),
    case("log: with another value, grpc", call("LogSettings", (("triton-grpc-protocol-admin", "no"),))),
    case("log: all, grpc", call("LogSettings", (KEY,))),
    *(
        case(f"log: {settings}", post(LOGGING, settings, ADMIN), get(LOGGING, ADMIN), post(LOGGING, USUAL, ADMIN))
        for settings in (
            {"log_info": False}, {"log_info": "no"}, {"log_info": 1}, {"log_warning": False}, {"log_error": True},
            {"log_verbose_level": 1}, {"log_verbose_level": "1"}, {"log_verbose_level": -1},
            {"log_verbose_level": True}, {"log_format": "ISO8601"}, {"log_format": "nobody"}, {"log_format": 1},
            {"log_file": "/tmp/mine"}, {"nobody": True}, {}, [],
        )
    ),
    case("log: no document", post(LOGGING, b"", ADMIN)),
    case("log: no JSON", post(LOGGING, b"hello", ADMIN)),
    case("log: set, grpc", _log(log_verbose_level=1), _log(log_verbose_level=0)),
    case("log: a text for a boolean, grpc", _log(log_info="no")),
    case("log: a number for a boolean, grpc", _log(log_info=1)),
    case("log: an unknown format, grpc", _log(log_format="nobody")),
    case("log: a file, grpc", _log(log_file="/tmp/mine")),
    case("log: an unknown setting, grpc", _log(nobody=True)),
    case("log: DELETE", Http("DELETE", LOGGING, b"", (ADMIN,))),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: (
        "trace: {'trace_rate': 5}", "trace: no JSON", "trace: no document", "trace: [[][]]", "log: {'log_info': 'no'}",
        "log: {'log_info': 1}", "log: {'log_verbose_level': '1'}", "log: {'log_verbose_level': -1}",
        "log: {'log_verbose_level': True}", "log: {'log_format': 1}", "log: no JSON", "log: no document", "log: [[][]]",
    ),
    reasons.LEVEL_TEXT: ("trace: {'trace_level': 'TIMESTAMPS'}",),
    reasons.LEVELS: (
        "trace: {'trace_level': ['NOBODY']}", "trace: {'trace_rate': '5x'}", "trace: {'trace_rate': '-1'}",
        "trace: {'log_frequency': '-7'}",
    ),
    reasons.LOAD_BODY: ("log: {'log_format': 'nobody'}",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
