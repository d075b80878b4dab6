# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.MetricFamily` against a host that notes what it is asked, told and given to measure."""

import gc
import math
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from pyruntime.stub.host import Host, set_host
from pyruntime.stub.pb_utils import MetricFamily, TritonModelException
from pyruntime.stub.pb_utils.metrics import MetricKind

DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
VERBS = {"value": "get"}
KINDS = {"counter": MetricFamily.COUNTER, "gauge": MetricFamily.GAUGE, "histogram": MetricFamily.HISTOGRAM}


class Notes(Host):
    """Gives out numbers, and notes everything."""

    def __init__(self):
        self.asked = []
        self.told = []
        self.measured = []
        self.answer = None
        self.refusal = None
        self._lock = threading.Lock()

    def ask(self, method, arguments):
        with self._lock:
            self.asked.append((method, *arguments))
            if self.refusal:
                raise TritonModelException(self.refusal)
            return len(self.asked) if self.answer is None else self.answer

    def tell(self, method, arguments):
        self.told.append((method, *arguments))

    def measure(self, metric, operation, value):
        self.measured.append((metric, operation, value))


@pytest.fixture
def host():
    notes = Notes()
    before = set_host(notes)
    yield notes
    set_host(before)


def family_of(kind):
    return MetricFamily("m", "About it.", KINDS[kind])


def metric_of(kind):
    """A metric, and its family, which must be kept."""
    family = family_of(kind)
    return family.Metric(buckets=[1.0] if kind == "histogram" else None), family


def refusal_of(function, *arguments, **more):
    """The message of the error that a call must end with."""
    with pytest.raises(TritonModelException) as caught:
        function(*arguments, **more)
    return str(caught.value)


class TestMaking:
    @pytest.mark.parametrize("kind", KINDS)
    def test_family(self, host, kind):
        """The host is asked for a family of this kind."""
        family = MetricFamily(name="m", description="About it.", kind=KINDS[kind])
        assert host.asked == [("metric_family", "m", "About it.", kind)]
        assert family.COUNTER is MetricKind.COUNTER

    def test_metric(self, host):
        """And then for its metrics, which have labels, or none."""
        family = family_of("gauge")
        kept = [family.Metric(), family.Metric(labels=None), family.Metric(labels={"a": "b"}), family.Metric({"c": ""})]
        assert [each[1:] for each in host.asked[1:]] == [
            (1, {}, None), (1, {}, None), (1, {"a": "b"}, None), (1, {"c": ""}, None),
        ]  # fmt: skip
        assert len(kept) == 4

    def test_buckets(self, host):
        """Those of a histogram may be any numbers."""
        family = family_of("histogram")
        family.Metric(buckets=[1, 2.5, np.float32(4)])
        family.Metric({}, [])
        assert [each[3] for each in host.asked[1:]] == [[1.0, 2.5, 4.0], []]
        assert {type(bound) for bound in host.asked[1][3]} == {float}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((None, "", KINDS["gauge"]), "name of a MetricFamily must be a str"),
            (("m", None, KINDS["gauge"]), "description of a MetricFamily must be a str"),
            (("m", "", 1), "kind must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, found 1"),
            (("m", "", "gauge"), "kind must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, found 'gauge'"),
        ],
    )
    def test_family_of_wrong_types(self, host, arguments, message):
        """They are a mistake in the code, and the host hears nothing of it."""
        with pytest.raises(TypeError, match=message):
            MetricFamily(*arguments)
        assert (host.asked, host.told) == ([], [])

    @pytest.mark.parametrize("labels", [[("a", "b")], "a", 3, ("a",)])
    def test_labels_that_are_no_dictionary(self, host, labels):
        """In Triton's words."""
        message = "Failed to create metric. Labels must be a dictionary."
        assert refusal_of(family_of("gauge").Metric, labels=labels) == message

    @pytest.mark.parametrize("labels", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}])
    def test_labels_that_are_no_texts(self, host, labels):
        """Both sides are texts."""
        message = "Failed to create metric. Labels must be a dictionary of str to str, found "
        assert refusal_of(family_of("gauge").Metric, labels=labels).startswith(message)

    @pytest.mark.parametrize(
        ("kind", "buckets", "message"),
        [
            ("histogram", None, "Missing required buckets."),
            ("histogram", (1.0, 2.0), "Buckets must be a list."),
            ("gauge", (1.0, 2.0), "Buckets must be a list."),
            ("gauge", [1.0], "Unexpected buckets found."),
            ("counter", [], "Unexpected buckets found."),
            ("histogram", ["1"], "Buckets must be a list of numbers."),
            ("histogram", [None], "Buckets must be a list of numbers."),
            ("histogram", [10**400], "Buckets must be a list of numbers."),
        ],
    )
    def test_bad_buckets(self, host, kind, buckets, message):
        """In Triton's words where it has some."""
        family = family_of(kind)
        assert refusal_of(family.Metric, buckets=buckets) == f"Failed to create metric. {message}"
        assert len(host.asked) == 1

    def test_what_the_host_refuses(self, host):
        """Its reason is told, and what was not made is not dropped."""
        family = family_of("gauge")
        host.refusal = "there are enough"
        assert refusal_of(family.Metric) == "Failed to create metric. there are enough"
        assert refusal_of(family_of, "gauge") == "Failed to create metric family. there are enough"
        gc.collect()
        assert host.told == []

    def test_outside_a_model(self):
        """Where there is no server there are no metrics."""
        before = set_host(None)
        try:
            assert "there is no server" in refusal_of(family_of, "gauge")
        finally:
            set_host(before)


class TestMeasuring:
    def test_counter(self, host):
        """It is incremented, without waiting, by numbers of any type, and asked for its value."""
        counter, _family = metric_of("counter")
        for value in (0, 1, 2.5, np.float32(0.5), np.int64(3), True):
            counter.increment(value)
        assert host.measured == [(2, "increment", value) for value in (0.0, 1.0, 2.5, 0.5, 3.0, 1.0)]
        assert {type(value) for _, _, value in host.measured} == {float}
        host.answer = 7
        assert counter.value() == 7.0
        assert host.asked[-1] == ("metric_value", 2)

    def test_gauge(self, host):
        """It is incremented and set, to anything."""
        gauge, _family = metric_of("gauge")
        gauge.increment(-2)
        gauge.set(math.inf)
        assert host.measured == [(2, "increment", -2.0), (2, "set", math.inf)]
        gauge.set(math.nan)
        assert math.isnan(host.measured[-1][2])

    def test_histogram(self, host):
        """It observes."""
        histogram, _family = metric_of("histogram")
        histogram.observe(-0.5)
        assert host.measured == [(2, "observe", -0.5)]

    @pytest.mark.parametrize(
        ("kind", "operation", "arguments", "reason"),
        [
            ("counter", "increment", (-1,), MONOTONIC),
            ("counter", "set", (1,), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
            ("counter", "observe", (1,), "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
            ("gauge", "observe", (1,), "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
            ("histogram", "increment", (1,), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
            ("histogram", "set", (1,), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
            ("histogram", "value", (), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
            ("counter", "increment", (math.nan,), "the value must be a finite number, found nan"),
            ("histogram", "observe", (-math.inf,), "the value must be a finite number, found -inf"),
            ("gauge", "set", (10**400,), f"the value is too large: 1{'0' * 39}..."),
        ],
    )
    def test_what_a_kind_does_not_do(self, host, kind, operation, arguments, reason):
        """In Triton's words, at once; the host hears nothing of it."""
        metric, _family = metric_of(kind)
        message = refusal_of(getattr(metric, operation), *arguments)
        assert message == f"Failed to {VERBS.get(operation, operation)} metric value: {reason}"
        assert (host.measured, len(host.asked)) == ([], 2)

    @pytest.mark.parametrize("value", ["1", b"1", None, [1], {}])
    def test_no_numbers(self, host, value):
        """Texts are none, even those that look like some."""
        gauge, _family = metric_of("gauge")
        with pytest.raises(TypeError):
            gauge.set(value)
        assert host.measured == []

    def test_value_that_cannot_be_had(self, host):
        """The host's reason is told."""
        gauge, _family = metric_of("gauge")
        host.refusal = "the server is gone"
        assert refusal_of(gauge.value) == "Failed to get metric value: the server is gone"

    def test_by_many_threads(self, host):
        """No update of a thread gets lost because of other threads."""
        counter, family = metric_of("counter")

        def use():
            for _ in range(100):
                counter.increment(1)
                family.Metric({"thread": "its own"}).increment(1)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(host.measured) == 800
        made = {number for number, operation, _ in host.measured if number != 2}
        assert {number for _, number in host.told} == made
        assert len(made) == 400


class TestEnding:
    def test_a_metric(self, host):
        """The host is told of the end of its object."""
        metric, family = metric_of("gauge")
        del metric
        assert host.told == [("drop_metric", 2)]
        del family
        assert host.told == [("drop_metric", 2), ("drop_family", 1)]

    @pytest.mark.parametrize(
        ("kind", "operation"),
        # The last two are not theirs, which does not matter any more.
        [
            ("counter", "increment"), ("gauge", "increment"), ("gauge", "set"), ("gauge", "value"),
            ("histogram", "observe"), ("counter", "set"), ("histogram", "value"),
        ],
    )  # fmt: skip
    def test_a_family_before_its_metrics(self, host, kind, operation):
        """They are of no use then, in Triton's words, and need no end of their own."""
        metric, family = metric_of(kind)
        del family
        arguments = () if operation == "value" else (1,)
        message = refusal_of(getattr(metric, operation), *arguments)
        assert message == f"Failed to {VERBS.get(operation, operation)} metric value: {DELETED}"
        del metric
        assert host.told == [("drop_family", 1)]

    def test_in_a_cycle(self, host):
        """Whichever the garbage collector ends first."""
        metric, family = metric_of("gauge")
        metric.cycle = family.cycle = [metric, family]
        del metric, family
        gc.collect()
        assert ("drop_family", 1) in host.told

    def test_a_host_that_is_gone(self, host, monkeypatch):
        """It cannot be told, and need not be: an error here would have nobody to catch it."""

        def tell(method, arguments):
            raise BrokenPipeError(method)

        monkeypatch.setattr(host, "tell", tell)
        metric, family = metric_of("gauge")
        del metric, family  # pytest fails a test whose destructors raise

    @pytest.mark.processes
    def test_at_the_end_of_the_interpreter(self):
        """Objects that live until then end in silence, whatever of the interpreter is gone before them."""
        code = """
            import sys
            from pyruntime.stub.host import Host, set_host
            from pyruntime.stub.pb_utils import MetricFamily

            class Fake(Host):
                def ask(self, method, arguments):
                    return 1
                def tell(self, method, arguments):
                    raise OSError(method)

            set_host(Fake())
            family = MetricFamily("m", "", MetricFamily.GAUGE)
            metric = family.Metric()
            sys.keep = [metric, family]
            metric.cycle = [metric, family]
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
