# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The registry: who shares what with whom, how long it lasts, and what stubs cannot do to it or to each other."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe import metrics as module
from pyruntime.runtime.observe.metrics import FAMILY_DELETED, Metrics

from .refusals import refusal_of

EMPTY = "<Metrics [0 families, 0 metrics | 0 owners]>"


def samples(metrics):
    """The samples that Prometheus' parser reads off the page: {(name, labels): value}."""
    page = metrics.render().decode()
    # The parser gives counters a `_total` that the page has not.
    return {
        (sample.name.removesuffix("_total"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


@pytest.fixture
def metrics():
    return Metrics()


class TestSharing:
    def test_one_counter(self, metrics):
        """A counter keeps the name that it was given."""
        family = metrics.family("o", "requests", "Requests.", "counter")
        counter = metrics.metric("o", family, {"model": "m"}, None)
        metrics.measure("o", counter, "increment", 2.0)
        assert metrics.value("o", counter) == 2
        assert metrics.render() == b'# HELP requests Requests.\n# TYPE requests counter\nrequests{model="m"} 2\n'
        assert repr(metrics) == "<Metrics [1 families, 1 metrics | 1 owners]>"

    def test_same_labels_same_metric(self, metrics):
        """Two owners with a family of one name and a metric of the same labels count together."""
        numbers = []
        for owner, labels in (("a", {"x": "1", "y": "2"}), ("b", {"y": "2", "x": "1"})):
            family = metrics.family(owner, "n", f"Of {owner}.", "counter")
            numbers.append(metrics.metric(owner, family, labels, None))
        metrics.measure("a", numbers[0], "increment", 1.0)
        metrics.measure("b", numbers[1], "increment", 2.0)
        assert [metrics.value("a", numbers[0]), metrics.value("b", numbers[1])] == [3, 3]
        assert metrics.render().startswith(b"# HELP n Of a.\n")
        assert samples(metrics) == {("n", ("x", "1"), ("y", "2")): 3}

    def test_other_labels_other_metric(self, metrics):
        """Labels tell the metrics of a family apart; without any is one more."""
        family = metrics.family("o", "g", "", "gauge")
        for value, labels in ((1.0, {"x": "1"}), (2.0, {"x": "2"}), (3.0, {})):
            metrics.measure("o", metrics.metric("o", family, labels, None), "set", value)
        assert samples(metrics) == {("g", ("x", "1")): 1, ("g", ("x", "2")): 2, ("g",): 3}

    def test_buckets_of_the_first_stay(self, metrics):
        """A histogram that is there already keeps its buckets, as in Triton."""
        family = metrics.family("o", "h", "", "histogram")
        first = metrics.metric("o", family, {}, [1.0])
        second = metrics.metric("o", family, {}, [5.0, 6.0])
        for number in (first, second):
            metrics.measure("o", number, "observe", 3.0)
        assert samples(metrics) == {
            ("h_bucket", ("le", "1")): 0, ("h_bucket", ("le", "+Inf")): 2, ("h_sum",): 6, ("h_count",): 2,
        }  # fmt: skip

    def test_no_two_kinds(self, metrics):
        """A family of the same name and another kind is refused, and nothing is left of it."""
        metrics.family("a", "n", "", "counter")
        before = repr(metrics)
        assert refusal_of(metrics.family, "b", "n", "", "gauge") == (
            "metric family 'n' is a counter already and cannot be a gauge as well"
        )
        assert repr(metrics) == before

    @pytest.mark.parametrize(("first", "second"), [("n", "n_sum"), ("n_count", "n")])
    def test_no_name_twice(self, metrics, first, second):
        """The names of a histogram's samples are taken as well; other names are free."""
        kinds = {"n": "histogram"}
        metrics.family("a", first, "", kinds.get(first, "counter"))
        message = f"metric family '{second}' would have samples named"
        assert message in refusal_of(metrics.family, "b", second, "", kinds.get(second, "counter"))
        metrics.drop_owner("a")
        metrics.family("b", second, "", kinds.get(second, "counter"))

    def test_everything_else_comes_first(self):
        """The server's own families stand in front of those that models made."""
        metrics = Metrics(lambda: "# TYPE own gauge\nown 1\n")
        metrics.metric("o", metrics.family("o", "n", "", "counter"), {}, None)
        assert metrics.render() == b"# TYPE own gauge\nown 1\n# TYPE n counter\nn 0\n"

    def test_empty_page(self, metrics):
        """A server whose models make none has a page all the same."""
        assert metrics.render() == b""


class TestEnding:
    def test_a_family_takes_its_metrics_with_it(self, metrics):
        """Its metrics cannot be used any more, in Triton's words; what another object of it made goes on."""
        first, second = (metrics.family("o", "n", "", "counter") for _ in range(2))
        gone, stays = (metrics.metric("o", family, {}, None) for family in (first, second))
        metrics.measure("o", gone, "increment", 1.0)
        metrics.drop_family("o", first)
        assert refusal_of(metrics.measure, "o", gone, "increment", 1.0) == FAMILY_DELETED
        assert refusal_of(metrics.value, "o", gone) == FAMILY_DELETED
        assert refusal_of(metrics.metric, "o", first, {}, None) == FAMILY_DELETED
        assert metrics.value("o", stays) == 1

    def test_a_metric_ends_with_its_last_object(self, metrics):
        """A metric that is made again begins at 0."""
        family = metrics.family("o", "n", "", "counter")
        first, second = (metrics.metric("o", family, {}, None) for _ in range(2))
        metrics.measure("o", first, "increment", 1.0)
        metrics.drop_metric("o", first)
        assert metrics.value("o", second) == 1
        metrics.drop_metric("o", second)
        assert metrics.render() == b""
        assert metrics.value("o", metrics.metric("o", family, {}, None)) == 0

    @pytest.mark.parametrize(("shared", "value"), [(True, 1), (False, 0)])
    def test_a_stub_that_ends(self, metrics, shared, value):
        """All metrics of the stub are dropped. Those that another stub has as well go on, others begin at 0 again."""
        owners = ["dead", "alive"] if shared else ["dead"]
        for owner in owners:
            number = metrics.metric(owner, metrics.family(owner, "n", "", "counter"), {}, None)
        metrics.measure(owners[-1], number, "increment", 1.0)
        metrics.drop_owner("dead")
        assert (repr(metrics) == EMPTY) is not shared
        number = metrics.metric("new", metrics.family("new", "n", "", "counter"), {}, None)
        assert metrics.value("new", number) == value

    def test_twice_is_nothing(self, metrics):
        """Whose destructor runs first is up to the garbage collector."""
        family = metrics.family("o", "n", "", "counter")
        number = metrics.metric("o", family, {}, None)
        metrics.drop_family("o", family)
        metrics.drop_metric("o", number)
        metrics.drop_family("o", family)
        metrics.drop_owner("o")
        assert repr(metrics) == EMPTY


class TestDistrust:
    @pytest.mark.parametrize("number", [0, -1, 99, True, 1.0, None, "1", [1]])
    def test_numbers_of_nothing(self, metrics, number):
        """A number that is not a handle of its owner has no effect."""
        metrics.metric("o", metrics.family("o", "n", "", "counter"), {}, None)
        before = repr(metrics)
        assert refusal_of(metrics.metric, "o", number if number != 1 else [], {}, None) == FAMILY_DELETED
        assert refusal_of(metrics.measure, "o", number, "increment", 1.0) == FAMILY_DELETED
        assert refusal_of(metrics.value, "o", number) == FAMILY_DELETED
        metrics.drop_metric("o", number)
        metrics.drop_family("o", [number])
        assert repr(metrics) == before

    def test_handles_of_others(self, metrics):
        """No owner can use, or drop, what another one was given."""
        family = metrics.family("o", "n", "", "counter")
        number = metrics.metric("o", family, {}, None)
        metrics.family("thief", "mine", "", "counter")
        before = repr(metrics)
        for owner in ("thief", "stranger"):
            assert refusal_of(metrics.metric, owner, family, {}, None) == FAMILY_DELETED
            assert refusal_of(metrics.measure, owner, number, "increment", 1.0) == FAMILY_DELETED
            assert refusal_of(metrics.value, owner, number) == FAMILY_DELETED
            metrics.drop_metric(owner, number)
            metrics.drop_family(owner, family)
        assert repr(metrics) == before

    @pytest.mark.parametrize("operation", ["value", "lines", "__init__", "", None, 3])
    def test_other_operations(self, metrics, operation):
        """There are three, and no other method of a metric can be reached by its name."""
        number = metrics.metric("o", metrics.family("o", "n", "", "gauge"), {}, None)
        message = refusal_of(metrics.measure, "o", number, operation, 1.0)
        assert message == f"an operation of a metric is one of increment, set, observe, not {operation!r}"

    @pytest.mark.parametrize(("counts", "total"), [(1, 1.0), ([1.0], 1.0), ([True], 1.0), ([1], 1), (None, None)])
    def test_observations_that_are_none(self, metrics, counts, total):
        """Observations are added to histograms only, as a list of integers and a float."""
        histogram = metrics.metric("o", metrics.family("o", "h", "", "histogram"), {}, [])
        gauge = metrics.metric("o", metrics.family("o", "g", "", "gauge"), {}, None)
        metrics.add_observations("o", histogram, [2], 3.0)
        assert "observations are added to a histogram" in refusal_of(
            metrics.add_observations, "o", histogram, counts, total
        )
        assert "observations are added to a histogram" in refusal_of(metrics.add_observations, "o", gauge, [1], 1.0)
        assert refusal_of(metrics.add_observations, "thief", histogram, [1], 1.0) == FAMILY_DELETED
        assert b"h_sum 3\nh_count 2\n" in metrics.render()

    @pytest.mark.parametrize("value", [1, "1", None, True])
    def test_values_that_are_no_floats(self, metrics, value):
        """A value that is not a float is refused."""
        number = metrics.metric("o", metrics.family("o", "n", "", "gauge"), {}, None)
        assert "the value of a metric is a float" in refusal_of(metrics.measure, "o", number, "set", value)
        assert metrics.value("o", number) == 0

    @pytest.mark.parametrize(
        ("labels", "buckets"),
        [(None, None), ({"a": 1}, None), ({"__a": ""}, None), ({}, [1.0]), ({}, "1")],
    )
    def test_what_is_refused_leaves_nothing(self, metrics, labels, buckets):
        """A metric that cannot be made is not there."""
        family = metrics.family("o", "n", "", "counter")
        refusal_of(metrics.metric, "o", family, labels, buckets)
        assert repr(metrics) == "<Metrics [1 families, 0 metrics | 1 owners]>"
        refusal_of(metrics.family, "other", "not a name", "", "counter")
        assert repr(metrics) == "<Metrics [1 families, 0 metrics | 1 owners]>"


class TestLimits:
    def test_families(self, metrics, monkeypatch):
        """There are so many and no more; one that is there can still be shared."""
        monkeypatch.setattr(module, "FAMILIES_MAX", 2)
        for name in "ab":
            metrics.family("o", name, "", "counter")
        assert refusal_of(metrics.family, "p", "c", "", "counter") == (
            "there are 2 metric families already, and no more can be had"
        )
        metrics.family("p", "a", "", "counter")
        metrics.drop_owner("o")
        metrics.family("p", "c", "", "counter")

    def test_metrics_of_a_family(self, metrics, monkeypatch):
        """The same for sets of labels."""
        monkeypatch.setattr(module, "METRICS_PER_FAMILY_MAX", 2)
        family = metrics.family("o", "n", "", "counter")
        numbers = [metrics.metric("o", family, {"a": text}, None) for text in "ab"]
        message = "metric family 'n' has 2 metrics, and no more can be had"
        assert refusal_of(metrics.metric, "o", family, {"a": "c"}, None) == message
        metrics.metric("o", family, {"a": "a"}, None)
        metrics.drop_metric("o", numbers[1])
        metrics.metric("o", family, {"a": "c"}, None)

    def test_objects_of_a_stub(self, metrics, monkeypatch):
        """One stub cannot fill the server with handles; others have theirs."""
        monkeypatch.setattr(module, "HANDLES_PER_OWNER_MAX", 2)
        family = metrics.family("o", "n", "", "counter")
        metrics.metric("o", family, {}, None)
        message = "an instance has 2 objects of metrics and families at most"
        assert refusal_of(metrics.metric, "o", family, {}, None) == message
        assert refusal_of(metrics.family, "o", "n", "", "counter") == message
        metrics.family("p", "n", "", "counter")

    def test_page(self, metrics, monkeypatch):
        """The size of the page is limited, for any contents; dropped metrics make room."""
        monkeypatch.setattr(module, "PAGE_BYTES_MAX", 1000)
        family = metrics.family("o", "n", "", "histogram")
        numbers = [metrics.metric("o", family, {}, [1.0, 2.0])]
        message = "all custom metrics together would have more than 1000 bytes on their page"
        assert refusal_of(metrics.metric, "o", family, {"a": "b"}, [1.0, 2.0, 3.0, 4.0]) == message
        assert refusal_of(metrics.family, "o", "other", "a" * 1000, "counter") == message
        metrics.drop_metric("o", numbers[0])
        metrics.metric("o", family, {"a": "b"}, [1.0, 2.0, 3.0, 4.0])


class Sharing(RuleBasedStateMachine):
    """Stubs make, use and drop metrics in any order, compared with a model of the page."""

    families = Bundle("families")
    counters = Bundle("counters")
    OWNERS = st.sampled_from("abc")
    LABELS = st.sampled_from(["", "1", "2"])

    def __init__(self):
        super().__init__()
        self.metrics = Metrics()
        self.made = {}  # family handle -> (owner, name)
        self.used = {}  # metric handle -> (owner, family handle, label)
        self.values = {}  # (name, label) -> value

    @rule(target=families, owner=OWNERS, name=st.sampled_from("xy"))
    def family(self, owner, name):
        number = self.metrics.family(owner, name, "", "counter")
        self.made[number] = (owner, name)
        return number

    @rule(target=counters, family=families, label=LABELS)
    def metric(self, family, label):
        if family not in self.made:
            return None
        owner, name = self.made[family]
        number = self.metrics.metric(owner, family, {"l": label} if label else {}, None)
        self.used[number] = (owner, family, label)
        self.values.setdefault((name, label), 0)
        return number

    @rule(counter=counters)
    def increment(self, counter):
        if counter not in self.used:
            return
        owner, family, label = self.used[counter]
        self.metrics.measure(owner, counter, "increment", 1.0)
        self.values[self.made[family][1], label] += 1

    @rule(counter=consumes(counters))
    def drop_metric(self, counter):
        if counter in self.used:
            owner, *_ = self.used.pop(counter)
            self.metrics.drop_metric(owner, counter)
            self.forget()

    @rule(family=consumes(families))
    def drop_family(self, family):
        if family in self.made:
            self.metrics.drop_family(self.made[family][0], family)
            self.used = {number: use for number, use in self.used.items() if use[1] != family}
            self.forget()
            del self.made[family]

    @rule(owner=OWNERS)
    def drop_owner(self, owner):
        self.metrics.drop_owner(owner)
        self.used = {number: use for number, use in self.used.items() if use[0] != owner}
        self.forget()
        self.made = {number: made for number, made in self.made.items() if made[0] != owner}

    def forget(self):
        alive = {(self.made[family][1], label) for _, family, label in self.used.values()}
        self.values = {key: value for key, value in self.values.items() if key in alive}

    @invariant()
    def page_is_what_it_must_be(self):
        expected = {(name, *([("l", label)] if label else [])): value for (name, label), value in self.values.items()}
        assert samples(self.metrics) == expected
        names = {name for _, name in self.made.values()}
        owners = {owner for owner, _ in self.made.values()}
        assert repr(self.metrics) == (
            f"<Metrics [{len(names)} families, {len(self.values)} metrics | {len(owners)} owners]>"
        )

    def teardown(self):
        for owner in "abc":
            self.metrics.drop_owner(owner)
        assert repr(self.metrics) == EMPTY
        assert self.metrics._size == 0


TestSharingOfMany = Sharing.TestCase
