# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `pyruntime top` makes of the documents of a server."""

import json

import pytest

from pyruntime.runtime.cli.commands.samples import Samples, Sort


def version(name="m", number="1", **changes):
    steps = dict.fromkeys(("total", "queue", "input", "infer", "output"), 0) | changes.pop("ns", {})
    return {
        "name": name, "version": number, "since_ms": 5, "queued": 0, "levels": {}, "memory": 1024, "success": 0,
        "failure": 0, "quantiles_us": None, "instances": [], **changes, "ns": steps,
    }  # fmt: skip


def document(now_ms, *versions, models=None, began_ms=0, **server):
    index = [{"name": each["name"], "version": each["version"], "state": "READY", "reason": ""} for each in versions]
    return {
        "server": {"began_ms": began_ms, "now_ms": now_ms, "ready": True, "exiting": False, **server},
        "closed": {},
        "models": index if models is None else models,
        "versions": list(versions),
    }


def rows(*documents, sort=Sort.NAME):
    """The rows of the last document."""
    samples = Samples(sort)
    return [samples.view(each) for each in documents][-1].rows


class TestRates:
    def test_of_two_documents(self):
        """What counters grew by, by the server's clock."""
        before = version(success=10, failure=1, ns={"total": 10_000_000, "queue": 1_000_000})
        after = version(success=30, failure=2, ns={"total": 50_000_000, "queue": 3_000_000})
        (row,) = rows(document(1000, before), document(3000, after))
        assert (row.requests, row.failures, row.latency_ms, row.queue_ms) == (10.0, 0.5, 2.0, 0.1)

    def test_nothing_happened(self):
        """Without requests there are no times."""
        (row,) = rows(document(1000, version(success=10)), document(3000, version(success=10)))
        assert (row.requests, row.failures, row.latency_ms) == (0.0, 0.0, None)

    @pytest.mark.parametrize(
        "before",
        [
            [],
            [document(1000, version("other"))],
            [document(1000, version(since_ms=4))],
            [document(1000, version(success=99))],
            [document(1000, version(failure=99))],
            [document(1000, version(), began_ms=1)],
            [document(3000, version())],
            [document(4000, version())],
        ],
        ids=["first", "new", "reloaded", "fewer", "fewer failures", "restarted", "at once", "clock"],
    )
    def test_none(self, before):
        """The first counters have no rate: of the first document, of a model or a server that began anew."""
        (row,) = rows(*before, document(3000, version(success=10)))
        assert (row.requests, row.failures, row.latency_ms) == (None, None, None)

    def test_sums(self):
        """The server's rates are those of all models."""
        samples = Samples()
        first = samples.view(document(0, version("a"), version("b")))
        assert (first.requests, first.failures) == (None, None)
        view = samples.view(document(2000, version("a", success=2), version("b", success=4, failure=1)))
        assert (view.requests, view.failures) == (3.0, 0.5)


class TestRows:
    def test_instances_and_queues(self):
        """Ready ones of all, restarts of all, and the levels in which requests wait."""
        instances = [{"name": "a", "state": "ready", "restarts": 2}, {"name": "b", "state": "starting", "restarts": 1}]
        levels = {"1": 0, "2": 3, "3": 4}
        (row,) = rows(document(0, version(instances=instances, queued=8, levels=levels, memory=77)))
        assert (row.ready, row.instances, row.restarts) == (1, 2, 3)
        assert (row.queued, row.levels, row.memory) == (8, {"2": 3, "3": 4}, 77)

    @pytest.mark.parametrize(
        ("found", "ms"), [(None, (None, None)), ([None, None], (None, None)), ([1500.0, 9000.0], (1.5, 9.0))]
    )
    def test_quantiles(self, found, ms):
        """They are there if the server has some, and had requests in the last minute."""
        (row,) = rows(document(0, version(quantiles_us=found)))
        assert (row.p50_ms, row.p99_ms) == ms

    def test_one_that_does_not_serve(self):
        """A model that did not load has a state and a reason, and no numbers."""
        index = [
            {"name": "m", "version": "", "state": "UNAVAILABLE", "reason": "no model.py"},
            {"name": "n", "version": "", "state": "", "reason": ""},
        ]
        first, second = rows(document(0, models=index))
        assert (first.state, first.reason, first.queued, first.memory) == ("unavailable", "no model.py", None, None)
        assert second.state == "unknown"

    def test_closed_apis(self):
        """Without the index those that serve are ready; without counters there are only states."""
        given = document(0, version())
        assert [row.state for row in rows({"server": given["server"], "versions": given["versions"]})] == ["ready"]
        (row,) = rows({"server": given["server"], "models": given["models"]})
        assert (row.model, row.queued) == ("m", None)

    @pytest.mark.parametrize(
        ("sort", "order"),
        [("name", "abc"), ("requests", "bac"), ("queue", "cab"), ("memory", "bca"), ("restarts", "acb"),
         ("latency", "cab"), ("failures", "cab")],
    )  # fmt: skip
    def test_order(self, sort, order):
        """The largest number first; equal ones, and all others, by name."""
        before = [version(name) for name in "cba"]

        def changed(name, success, failure, queued, memory, restarts, total):
            instances = [{"name": name, "state": "ready", "restarts": restarts}]
            ns = {"total": total}
            return version(
                name, success=success, failure=failure, queued=queued, memory=memory, instances=instances, ns=ns
            )

        after = [changed("c", 1, 2, 5, 20, 1, 900), changed("b", 9, 0, 0, 30, 0, 90), changed("a", 4, 1, 3, 10, 4, 400)]
        found = rows(document(0, *before), document(1000, *after), sort=Sort(sort))
        assert "".join(row.model for row in found) == order

    def test_versions_of_a_model(self):
        """Versions of one model are next to each other."""
        found = rows(document(0, version("m", "2"), version("a"), version("m", "1")))
        assert [(row.model, row.version) for row in found] == [("a", "1"), ("m", "1"), ("m", "2")]


@pytest.mark.parametrize(
    ("ready", "exiting", "state"), [(True, False, "ready"), (False, False, "not ready"), (True, True, "stopping")]
)
def test_server(ready, exiting, state):
    """Its state, and since when it runs."""
    view = Samples().view(document(7000, began_ms=1000, ready=ready, exiting=exiting, in_flight=3, pending_bytes=9))
    assert (view.state, view.up_s, view.in_flight, view.pending_bytes) == (state, 6.0, 3, 9)


def test_json():
    """All of it can be written as JSON."""
    view = Samples().view(document(0, version(levels={"1": 2})))
    assert json.loads(json.dumps(view.to_json()))["rows"][0]["levels"] == {"1": 2}
