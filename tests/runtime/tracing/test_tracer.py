# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
from types import SimpleNamespace

import pytest

from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.settings import TraceSettings
from pyruntime.runtime.tracing import tracer as module
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.runtime.tracing.writer import TraceWriter
from pyruntime.utils.errors import Code, InferenceError

ON = ("TIMESTAMPS",)
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def model(name="m"):
    return SimpleNamespace(spec=SimpleNamespace(name=name), version=1)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """`make(**settings)`: a tracer of models "m" and "n". Its writes are in `make.writes`."""
    writes = []
    monkeypatch.setattr(TraceWriter, "put", lambda self, write: writes.append(write))

    def make(**settings):
        settings = {"levels": ON, "rate": 1, "file": str(tmp_path / "t"), **settings}
        return Tracer(TraceSettings(**settings), "1", lambda name: name in ("m", "n"))

    make.writes = writes
    return make


@pytest.fixture
def answer(traces):
    """Has a traced request answered; for a call there is no client to be answered."""

    def answer(trace):
        job = traces.job()
        trace.attach(job, traces.region)
        job.respond(InferResponse("m", 1, "7", []), True)
        if not trace.parent_id:
            trace.close()

    return answer


def written(make):
    return [([trace.id for trace in write.traces], write.apart) for write in make.writes]


class TestSettings:
    def test_shown(self, make, tmp_path):
        """All settings, as Triton shows them."""
        tracer = make(levels=("TIMESTAMPS", "TENSORS"), rate=5, count=7, log_frequency=3)
        assert tracer.settings() == {
            "trace_level": ["TIMESTAMPS", "TENSORS"],
            "trace_rate": "5",
            "trace_count": "7",
            "log_frequency": "3",
            "trace_file": str(tmp_path / "t"),
            "trace_mode": "triton",
        }
        assert tracer.settings("m") == tracer.settings()

    def test_shown_of_opentelemetry(self, make):
        """OpenTelemetry has other settings. A password is not shown."""
        tracer = make(
            levels=(), mode="opentelemetry", url="http://u:p@host/v1/traces", resource=(("a", "b"), ("c", "d=e"))
        )
        assert tracer.settings() == {
            "trace_level": ["OFF"],
            "trace_rate": "1",
            "trace_count": "-1",
            "trace_mode": "opentelemetry",
            "url": "http://host/v1/traces",
            "resource": ["a=b", "c=d=e"],
            "bsp_max_queue_size": "2048",
            "bsp_schedule_delay": "5000",
            "bsp_max_export_batch_size": "512",
        }
        assert "resource" not in make(mode="opentelemetry").settings()

    def test_update(self, make):
        """Values are texts, or lists of one; None and an empty list clear them; unknown names have no effect."""
        tracer = make(rate=1000)
        tracer.update("", {"trace_rate": "5", "trace_count": ["6"], "trace_mode": "x", "bogus": None})
        shown = tracer.settings("m")
        assert (shown["trace_rate"], shown["trace_count"], shown["trace_mode"]) == ("5", "6", "triton")
        tracer.update("m", {"trace_level": "TENSORS", "log_frequency": "2"})
        tracer.update("", {"trace_rate": None, "trace_count": [], "trace_level": []})
        assert tracer.settings("m")["trace_level"] == ["TENSORS"]
        assert tracer.settings("m")["trace_rate"] == "1000"
        assert tracer.settings() == tracer.settings("n")
        assert tracer.settings()["trace_level"] == ["TIMESTAMPS"]

    @pytest.mark.parametrize(
        ("values", "code", "message"),
        [
            ({"trace_rate": "x"}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
            ({"trace_rate": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'trace_rate'"),
            ({"log_frequency": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'log_frequency'"),
            (
                {"trace_level": ["OFF", "TENSORS"]},
                Code.INVALID_ARG,
                "Expect only one trace level 'OFF' is specified",
            ),
            (
                {"trace_file": None},
                Code.UNSUPPORTED,
                "trace file location can not be updated through network protocol",
            ),
        ],
    )
    def test_refused(self, make, values, code, message):
        """One value that is refused, and none is changed."""
        tracer = make()
        before = tracer.settings()
        with pytest.raises(InferenceError) as caught:
            tracer.update("", {"trace_count": "9"} | values)
        assert (caught.value.code, caught.value.message) == (code, message)
        assert tracer.settings() == before

    def test_unknown_model(self, make):
        """Only models that there are have settings."""
        tracer = make()
        for ask in (lambda: tracer.settings("x"), lambda: tracer.update("x", {"trace_rate": "1"})):
            with pytest.raises(InferenceError, match=r"^Request for unknown model : x$") as caught:
                ask()
            assert caught.value.code is Code.INVALID_ARG


class TestActive:
    @pytest.mark.parametrize(
        ("settings", "active"),
        [({}, True), ({"levels": ()}, False), ({"count": 0}, False), ({"file": ""}, False)],
        ids=str,
    )
    def test_at_the_start(self, make, settings, active):
        """A tracer is active if it may trace something, and has a place for it."""
        assert make(**settings).active is active

    def test_by_settings(self, make):
        """Clients turn it on and off."""
        tracer = make(levels=())
        tracer.update("m", {"trace_level": ["TENSORS"]})
        assert tracer.active
        tracer.update("m", {"trace_level": None})
        assert not tracer.active

    def test_by_count(self, make):
        """When all are traced that were wanted it ends by itself."""
        tracer = make(count=1)
        assert tracer.sample(model(), "", "") is not None
        assert not tracer.active
        assert tracer.sample(model(), "", "") is None

    def test_without_a_place(self, make):
        """Without a file nothing is traced."""
        assert make(file="").sample(model(), "", "") is None


class TestRequests:
    def test_written(self, make, answer):
        """Traces have numbers, and are written when they are complete."""
        tracer = make()
        first, second = tracer.sample(model(), "r", ""), tracer.sample(model("n"), "", "")
        assert (first.id, first.request_id, first.model_name, first.context) == (1, "r", "m", "1")
        assert (second.id, second.model_name, second.spans) == (2, "n", None)
        answer(second)
        answer(first)
        assert written(make) == [([2], False), ([1], False)]
        assert repr(tracer) == "<Tracer triton [0 under way]>"

    def test_rate(self, make):
        """Requests that are not picked have no trace."""
        tracer = make(rate=2)
        assert tracer.sample(model(), "", "") is None
        assert tracer.sample(model(), "", "") is not None

    def test_calls(self, make, answer):
        """A call belongs to the request that it is made for, and they are written together, the request last."""
        tracer = make()
        request = tracer.sample(model(), "", "")
        call = tracer.call(model("n"), "r", request.context)
        inner = tracer.call(model("m"), "", call.context)
        assert [trace.parent_id for trace in (request, call, inner)] == [0, 1, 2]
        answer(inner)
        answer(call)
        assert written(make) == []
        answer(request)
        assert written(make) == [([3, 2, 1], False)]

    def test_call_that_outlives_its_request(self, make, answer):
        """All are written when the last one is complete."""
        tracer = make()
        request = tracer.sample(model(), "", "")
        call = tracer.call(model("n"), "", request.context)
        answer(request)
        assert written(make) == []
        answer(call)
        assert written(make) == [([1, 2], False)]

    @pytest.mark.parametrize("context", ["", "7", "{}"])
    def test_call_of_nobody(self, make, context):
        """A call that is made for no request that is traced is not traced itself."""
        assert make().call(model(), "", context) is None

    def test_call_after_the_end(self, make, answer):
        """A request that is complete has no calls any more."""
        tracer = make()
        request = tracer.sample(model(), "", "")
        answer(request)
        assert tracer.call(model(), "", request.context) is None

    def test_too_many_calls(self, make, monkeypatch):
        """A model that calls others without end has some of the calls traced."""
        monkeypatch.setattr(module, "TREE_TRACES_MAX", 2)
        tracer = make()
        request = tracer.sample(model(), "", "")
        assert tracer.call(model(), "", request.context) is not None
        assert tracer.call(model(), "", request.context) is None

    def test_change_of_files(self, make, answer):
        """Traces that are kept for a file are written when the settings change, or the server stops."""
        tracer = make(log_frequency=10)
        answer(tracer.sample(model(), "", ""))
        tracer.update("n", {"trace_rate": "1"})
        assert written(make) == []
        tracer.update("", {"log_frequency": "5"})
        assert written(make) == [([1], True)]
        answer(tracer.sample(model("n"), "", ""))
        tracer.update("n", {"trace_rate": None})
        assert written(make) == [([1], True), ([2], True)]
        answer(tracer.sample(model(), "", ""))
        tracer.close()
        assert written(make) == [([1], True), ([2], True), ([3], True)]

    def test_close_without_a_place(self, make):
        """Without a file, closing writes nothing."""
        make(file="").close()


class TestOpenTelemetry:
    def test_new(self, make, answer):
        """A request of a client that traces nothing begins a trace; its model hands on its span."""
        tracer = make(mode="opentelemetry")
        trace = tracer.sample(model(), "", "")
        assert trace.spans.parent == ""
        assert json.loads(trace.context) == {"traceparent": f"00-{trace.spans.trace}-{trace.spans.model}-01"}
        ids = [trace.spans.request, trace.spans.model, trace.spans.compute]
        assert [len(id) for id in (trace.spans.trace, *ids)] == [32, 16, 16, 16]
        assert len(set(ids)) == 3
        answer(trace)
        assert written(make) == [([1], False)]

    def test_of_a_client(self, make):
        """A request that its client traces is traced for every rate and count, and does not count."""
        tracer = make(mode="opentelemetry", rate=1000, count=1)
        trace = tracer.sample(model(), "", f"00-{TRACE}-{SPAN}-01")
        assert (trace.spans.trace, trace.spans.parent) == (TRACE, SPAN)
        assert tracer.settings()["trace_count"] == "1"

    def test_not_sampled_by_the_client(self, make):
        """A request that its client does not record is sampled like others, and has the client's trace."""
        tracer = make(mode="opentelemetry", rate=2)
        assert tracer.sample(model(), "", f"00-{TRACE}-{SPAN}-00") is None
        assert tracer.sample(model(), "", f"00-{TRACE}-{SPAN}-00").spans.trace == TRACE

    def test_off(self, make):
        """A client cannot turn on what the operator has turned off."""
        tracer = make(mode="opentelemetry", levels=())
        assert tracer.sample(model(), "", f"00-{TRACE}-{SPAN}-01") is None

    def test_in_mode_triton(self, make):
        """Files know nothing of a client's trace."""
        assert make(rate=1000).sample(model(), "", f"00-{TRACE}-{SPAN}-01") is None

    def test_call(self, make):
        """The span of a call lies in that of the model that makes it."""
        tracer = make(mode="opentelemetry")
        request = tracer.sample(model(), "", "")
        call = tracer.call(model("n"), "", request.context)
        assert (call.spans.trace, call.spans.parent, call.spans.request) == (
            request.spans.trace,
            request.spans.model,
            "",
        )

    def test_times_with_tensors_alone(self, make, answer):
        """A span has times in any case."""
        tracer = make(mode="opentelemetry", levels=("TENSORS",))
        trace = tracer.sample(model(), "", "")
        answer(trace)
        assert trace.notes[0][0] == "REQUEST_START"
