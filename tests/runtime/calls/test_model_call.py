# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One call, with a callee that the test controls."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.calls.model_call import (
    DEADLOCK_AFTER_S,
    ModelCall,
    call_failure,
    is_decoupled,
    not_ready,
)
from pyruntime.runtime.ensembles.run import Start
from pyruntime.runtime.ensembles.step_call import StepCall
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import Code, InferenceError

RESPONSE = InferResponse("callee", 1, "7", [])
CANCELLED = InferenceError("", Code.CANCELLED)
WOULD_WAIT = (
    "the step would wait for ever, because every instance that could serve it waits for this one: "
    "m -> callee -> m. Give one of these models more instances"
)


class Slot:
    """A piece of memory that counts how often it is freed."""

    offset = 0
    view = memoryview(b"")

    def __init__(self):
        self.freed = 0

    def free(self):
        self.freed += 1


class Worker:
    """A thread that executes batches, which waits for calls to these workers."""

    def __init__(self, model_name, *waits_for):
        self.model_name = model_name
        self.waits_for = waits_for

    def worker_of(self, job):
        return self

    def waiting_calls(self):
        return self.waits_for


class Callee:
    """A model. Jobs queue until the test gives them an instance."""

    version = 1

    is_limited = False

    def __init__(self):
        self.spec = SimpleNamespace(name="callee")
        self.workers = [Worker("callee")]
        self.events = []
        self.at_start = self.at_expedite = lambda job: None

    def start(self, job):
        self.events.append(("start", job))
        self.at_start(job)

    def expedite(self, job):
        return self.at_expedite(job)

    def cancel(self, job):
        self.events.append(("cancel", job))
        if job.instance is None:
            job.respond(CANCELLED, True)


class Request:
    """Stands for a call request: makes a job without contents, or raises an error."""

    def __init__(self, trace="", failure=None):
        self.trace = trace
        self.failure = failure

    def make_job(self, callee, slots, respond):
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(slots=slots, respond=respond, instance=None, trace=None)


class Bench:
    """A call, and all that happens because of it."""

    def __init__(self, request=None):
        self.callee = Callee()
        self.slot = Slot()
        self.answers = []
        self.traced = []
        self.call = ModelCall(
            self, request or Request(), [self.slot], lambda outcome, final: self.answers.append((outcome, final))
        )

    def trace_call(self, callee, job, context):
        self.traced.append((callee, job, context, list(callee.events)))

    def start(self):
        self.call.start(self.callee)
        return self.call.job


class Trace:
    """Sees the answer to a job before the caller does."""

    def __init__(self):
        self.seen = []

    def answering(self, respond):
        def answered(outcome, final):
            self.seen.append(outcome)
            respond(outcome, final)

        return answered


@pytest.fixture
def bench():
    return Bench()


class TestStart:
    def test_responses(self, bench):
        """All that the callee answers are the call's responses, untouched."""
        job = bench.start()
        job.respond(RESPONSE, False)
        job.respond(None, True)
        assert bench.answers == [(RESPONSE, False), (None, True)]
        assert (bench.call.callee, job.slots, bench.slot.freed) == (bench.callee, [bench.slot], 0)

    def test_refused_request(self):
        """If the callee refuses the request, the inputs are freed and the call has not begun."""
        bench = Bench(Request("context", InferenceError("wrong", Code.INVALID_ARG)))
        with pytest.raises(InferenceError, match="wrong"):
            bench.start()
        bench.call.free()
        bench.call.cancel()
        assert (bench.slot.freed, bench.answers, bench.traced, bench.callee.events) == (1, [], [], [])
        assert bench.call.job is None

    def test_refused_job(self, bench):
        """A job that cannot queue frees the inputs itself: they are not the call's any more."""

        def refuse(job):
            job.slots.pop().free()
            raise InferenceError("Exceeds maximum queue size", Code.UNAVAILABLE)

        bench.callee.at_start = refuse
        with pytest.raises(InferenceError, match="queue size"):
            bench.start()
        bench.call.free()
        assert (bench.slot.freed, bench.answers) == (1, [])

    def test_trace(self):
        """A call is added to its trace before it starts; a call without a trace is added to none."""
        bench = Bench(Request("context"))
        job = bench.start()
        assert bench.traced == [(bench.callee, job, "context", [])]
        other = Bench()
        other.start()
        assert other.traced == []


class TestCancel:
    def test_once(self, bench):
        """A call is cancelled once, and its callee answers."""
        job = bench.start()
        bench.call.cancel()
        bench.call.cancel()
        assert bench.callee.events == [("start", job), ("cancel", job)]
        assert bench.answers == [(CANCELLED, True)]

    def test_before_start(self, bench):
        """A call that was cancelled before, for example while its callee loaded, does not start."""
        bench.call.cancel()
        with pytest.raises(InferenceError) as caught:
            bench.start()
        assert caught.value.code is Code.CANCELLED
        assert (bench.slot.freed, bench.callee.events) == (1, [])


class TestServers:
    def test_queued(self, bench):
        """Any worker of the callee may serve a call that queues."""
        bench.start()
        assert bench.call.servers() == (bench.callee.workers, "callee")

    def test_running(self, bench):
        """One that an instance has is served by that one."""
        job = bench.start()
        job.instance = Worker("callee")
        assert bench.call.servers() == ([job.instance], "callee")


@pytest.fixture
def stuck(bench):
    """A call whose only server waits for its caller, which waits for the call."""
    caller = Worker("m")
    bench.callee.workers = [Worker("callee", ([caller], "m"))]
    bench.start()
    caller.waits_for = [bench.call.servers()]
    return bench


class TestDeadlock:
    def test_at_once(self, stuck):
        """The caller reads why, and not that the call was cancelled; a trace has the end of the job."""
        stuck.call.job.trace = trace = Trace()
        stuck.call.refuse_deadlock("m", "the step")
        ((failure, final),) = stuck.answers
        assert (failure.code, failure.message, final) == (Code.UNAVAILABLE, WOULD_WAIT, True)
        assert trace.seen == [CANCELLED]

    @pytest.mark.parametrize("why", ["runs", "somebody is free"])
    def test_none(self, stuck, why):
        """A call that runs, or that another worker can serve, goes on."""
        if why == "runs":
            stuck.call.job.instance = stuck.callee.workers[0]
        else:
            stuck.callee.workers.append(Worker("callee"))
        stuck.call.refuse_deadlock("m", "the step")
        assert stuck.answers == []

    def test_of_a_call_that_has_not_started(self, bench):
        """A call that has not started is not refused."""
        bench.call.refuse_deadlock("m", "the step")
        assert bench.answers == []

    @pytest.mark.parametrize("is_waited_for", [False, True])
    def test_later(self, stuck, monkeypatch, is_waited_for):
        """A caller that may not wait is given its time; then it counts whether it may still wait."""
        later = []
        loop = SimpleNamespace(call_later=lambda delay_s, act: later.append((delay_s, act)))
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        stuck.call.refuse_deadlock_later("m", "the step", lambda: is_waited_for)
        ((delay_s, act),) = later
        assert (delay_s, stuck.answers) == (DEADLOCK_AFTER_S, [])
        act()
        assert [outcome.message for outcome, _ in stuck.answers] == [WOULD_WAIT] * is_waited_for

    def test_ahead_of_reservations(self, stuck):
        """A call that only waits behind those that wait for its caller goes ahead of them."""
        stuck.callee.is_limited = True

        def serve(job):
            stuck.callee.workers = [Worker("callee")]
            job.instance = stuck.callee.workers[0]
            return []

        stuck.callee.at_expedite = serve
        stuck.call.refuse_deadlock("m", "the step")
        assert stuck.answers == []

    def test_for_lack_of_resources(self, stuck):
        """The caller reads which resources there is too little of."""
        stuck.callee.is_limited = True
        stuck.callee.at_expedite = lambda job: ["R", "S"]
        stuck.call.refuse_deadlock("m", "the step")
        ((failure, _),) = stuck.answers
        assert failure.message == (
            WOULD_WAIT + ", or the server more of resource 'R', or the server more of resource 'S'"
        )

    def test_review(self, bench, monkeypatch):
        """A call that waits for resources is looked at again until it is over: a deadlock may arise meanwhile."""
        timers, freed = [], []

        def call_later(delay_s, act, *of):
            assert delay_s == DEADLOCK_AFTER_S
            timers.append(SimpleNamespace(act=lambda: act(*of), cancelled=False, cancel=lambda: freed.append("timer")))
            return timers[-1]

        monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(call_later=call_later))
        bench.callee.is_limited = True
        bench.callee.at_expedite = lambda job: ["R"]
        job = bench.start()
        job.on_free = lambda _: freed.append("job")
        bench.call.refuse_deadlock("m", "the step")
        timers[0].act()
        assert (len(timers), bench.answers) == (2, [])
        job.on_free(job)
        assert freed == ["timer", "job"]
        caller = Worker("m")
        bench.callee.workers = [Worker("callee", ([caller], "m"))]
        caller.waits_for = [bench.call.servers()]
        timers[1].act()
        assert [failure.message for failure, _ in bench.answers] == [
            WOULD_WAIT + ", or the server more of resource 'R'"
        ]

    def test_review_of_a_step_that_has_ended(self):
        """A step drops what it refers to when it ends; a look that comes later does nothing."""
        owner = SimpleNamespace(job=SimpleNamespace(trace_context=""), mark=None, responded=lambda *_: None)
        call = StepCall(owner, None, Start(None, None))
        call.end()
        call.refuse_deadlock("m", "the step")

    def test_nothing_to_review(self, bench, monkeypatch):
        """If the call can be served now, no timer is set."""
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: pytest.fail("a timer is set"))
        bench.start()
        bench.call.refuse_deadlock_later("m", "the step", lambda: True)


def test_messages():
    """Triton's words, exactly."""
    prefix = "Model other - Error when running inference: "
    assert call_failure("other", InferenceError("why")).message == prefix + "why"
    assert not_ready("other").message == (
        prefix + "Failed for execute the inference request. Model 'other' is not ready."
    )
    assert is_decoupled("other").message == (
        prefix + "Model other is using the decoupled. The current BLS request call doesn't support models using the "
        "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
        "decoupled models.'"
    )
