# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances of models of native backends: their thread, its work, and the events."""

import gc
import threading
import weakref

import pytest

from pyruntime.runtime.native import _triton
from pyruntime.utils.errors import Code

CANCELLED, INTERNAL, UNAVAILABLE = int(Code.CANCELLED), int(Code.INTERNAL), int(Code.UNAVAILABLE)
CPU, GPU = 1, 2


class Job:
    """Stands for the Python object of a request."""


def wire(id="1"):
    """A request without inputs."""
    return [id, 0, 0, 0, None, "", [], "", None]


def threads_of(told):
    """The thread of each step."""
    return {what: value for what, value in told.items() if what.split()[0].startswith("ModelInstance")}


def test_is_told_what_it_is(lifecycle, lives):
    """By everything it can ask."""
    lives("mine", kind=GPU, device=5)
    told, steps = lifecycle.learned()
    assert steps[-1] == "ModelInstanceInitialize mine"
    assert told["Instance place"] == "GPU 5"
    assert told["Instance host policy"] == '{"cpu":{}}'
    assert told["Instance passive"] == "yes"
    assert told["Instance profile"] == "large"
    assert told["Instance no profile"] == (
        "Invalid argument: out of bounds index 2: instance is configured with 2 profiles"
    )
    assert told["Instance secondary device"] == "KIND_NVDLA 2"
    assert told["Instance no secondary device"] == (
        "Invalid argument: out of bounds index 2: instance is configured with 2 secondary devices"
    )
    assert told["Instance state"] == "none"


def test_says_what_memory_it_takes(lives):
    """The memory usage is the one that the backend reported last."""
    assert lives().memory_usage == [(2, 3, 4096), (1, 0, 1 << 40)]


class TestThread:
    """Where an instance's functions run."""

    def test_is_its_own(self, lifecycle):
        """From the first call to the last, and not Python's."""
        backend = lifecycle.backend()
        backend.initialize()
        model = lifecycle.model(backend)
        model.initialize()
        threads = set()
        for name in ("first", "second"):
            instance = lifecycle.instance(model, name)
            instance.initialize()
            instance.execute([Job()], [wire()], 1, 0)
            instance.finalize()
            told, _ = lifecycle.learned()
            ours = told.get("ModelInitialize model", "")
            used = {*threads_of(told).values()}
            assert len(used) == 1
            assert ours not in used
            assert [what.split()[0] for what in threads_of(told)] == [
                "ModelInstanceInitialize",
                "ModelInstanceExecute",
                "ModelInstanceFinalize",
            ]
            threads |= used
        model.finalize()
        backend.finalize()

    @pytest.mark.parametrize(
        ("policy", "places", "count"),
        [
            ("shares threads", [(GPU, 0), (GPU, 0)], 1),
            ("shares threads", [(GPU, 0), (GPU, 1)], 2),
            ("shares threads", [(CPU, 0), (CPU, 0)], 2),
            ("has threads", [(GPU, 0), (GPU, 0)], 2),
        ],
    )
    def test_is_that_of_the_gpu_if_the_backend_wants_it(self, lifecycle, policy, places, count):
        """For the instances of a model on one GPU; the last of them ends it."""
        backend = lifecycle.backend(policy)
        backend.initialize()
        model = lifecycle.model(backend)
        model.initialize()
        instances = [
            lifecycle.instance(model, f"i{number}", kind=kind, device=device)
            for number, (kind, device) in enumerate(places)
        ]
        for instance in instances:
            instance.initialize()
        assert len({*threads_of(lifecycle.learned()[0]).values()}) == count
        instances[0].finalize()
        instances[1].execute([Job()], [wire()], 1, 0)
        instances[1].finalize()
        told, _ = lifecycle.learned()
        assert len({*threads_of(told).values()}) == count
        model.finalize()
        backend.finalize()


class TestBeginAndEnd:
    """Initialising and finalising."""

    @pytest.mark.parametrize(
        ("name", "failure"),
        [
            ("fails in ModelInstanceInitialize", (UNAVAILABLE, "no ModelInstanceInitialize")),
            (
                "throws in ModelInstanceInitialize",
                (INTERNAL, "TRITONBACKEND_ModelInstanceInitialize threw an exception: nothing there"),
            ),
        ],
    )
    def test_what_fails_is_finalised(self, lifecycle, lives, name, failure):
        """An instance that fails to initialise is finalised once, so that the backend can free its state."""
        with pytest.raises(_triton.NativeError) as caught:
            lives(name)
        assert caught.value.args == failure
        assert lifecycle.learned()[1][-1] == f"ModelInstanceFinalize {name}"

    def test_an_end_that_fails_is_one(self, lifecycle, lives):
        """A failed Finalize is an error with the backend's message, and is not repeated."""
        instance = lives("fails in ModelInstanceFinalize")
        with pytest.raises(_triton.NativeError, match="no ModelInstanceFinalize"):
            instance.finalize()
        lifecycle.learned()
        instance.finalize()
        assert lifecycle.learned()[1] == []

    def test_the_end_comes_after_all_that_was_given(self, lifecycle, lives):
        """Every batch that was given is executed before the instance ends."""
        instance = lives(owner="me")
        for serial in range(1, 9):
            instance.execute([Job()], [wire()], serial, 0)
        instance.finalize()
        executed = lifecycle.wait(*[_triton.EXECUTED] * 8)
        assert [serial for _, serial, *_ in executed] == [*range(1, 9)]

    def test_nothing_is_taken_before_and_after(self, lifecycle, lives):
        """The backend could not execute it."""
        instance = lives()
        instance.finalize()
        backend = lifecycle.backend()
        early = lifecycle.instance(lifecycle.model(backend), "early")
        for unready in (instance, early):
            with pytest.raises(_triton.NativeError) as caught:
                unready.execute([Job()], [wire()], 1, 0)
            assert caught.value.args[0] == UNAVAILABLE
            assert unready.is_ready() == caught.value.args[1]

    def test_what_comes_during_the_end_is_answered(self, lifecycle, lives):
        """By the backend, or with the reason why it is too late."""
        instance = lives()
        jobs = []
        given = threading.Event()

        def give():
            try:
                while True:
                    jobs.append(Job())
                    instance.execute([jobs[-1]], [wire()], len(jobs), 0)
                    given.set()
            except _triton.NativeError:
                jobs.pop()  # was refused

        thread = threading.Thread(target=give)
        thread.start()
        assert given.wait(60)
        instance.finalize()
        thread.join()
        responses = lifecycle.wait(*[_triton.RESPONSE] * len(jobs))
        assert [job for job, *_ in responses] == jobs
        assert {failure for _, _, failure, *_ in responses} <= {
            None,
            (UNAVAILABLE, "instance 'instance' is not initialized"),
        }

    def test_the_owner_is_kept(self, lifecycle, lives):
        """As long as the instance is."""
        owner = Job()
        owner.instance = lives(owner=owner)
        seen = weakref.ref(owner)
        owner.instance.execute([Job()], [wire()], 1, 0)
        assert lifecycle.wait(_triton.EXECUTED)[0][0] is owner
        owner.instance.finalize()
        del owner
        gc.collect()
        assert seen() is not None  # the fixture has the instance, and that its owner

    def test_a_circle_of_owner_and_instance_is_collected(self, lifecycle):
        """A reference cycle of owner and instance is collected, with the events that wait for it."""
        backend = lifecycle.backend()
        backend.initialize()
        model = lifecycle.model(backend)
        model.initialize()
        owner = Job()
        owner.instance = lifecycle.instance(model, owner=owner)
        owner.instance.initialize()
        owner.instance.execute([Job()], [wire()], 1, 0)
        owner.instance.finalize()
        seen = weakref.ref(owner)
        del owner
        gc.collect()
        assert seen() is None
        lifecycle.take()
        assert _triton.EXECUTED not in [kind for kind, *_ in lifecycle.events]
        model.finalize()
        backend.finalize()

    def test_what_nobody_ended_stays(self, lifecycle):
        """A backend may use an instance for as long as it was not told of its end."""
        backend = lifecycle.backend()
        backend.initialize()
        model = lifecycle.model(backend)
        model.initialize()
        instance = lifecycle.instance(model)
        instance.initialize()
        job = Job()
        instance.execute([job], [wire("wait for cancellation")], 1, 0)
        instance.cancel(1)
        del instance
        ((answered, *_),) = lifecycle.wait(_triton.RESPONSE)
        assert answered is job
        with pytest.raises(_triton.NativeError, match="instances of it still run"):
            model.finalize()


class TestExecution:
    """Batches."""

    def test_is_told_with_its_times(self, lifecycle, lives):
        """By the clock of time.monotonic_ns."""
        instance = lives(owner="me")
        instance.execute([Job(), Job()], [wire(), wire()], 2**63, 0)
        ((owner, serial, start, end),) = lifecycle.wait(_triton.EXECUTED)
        assert (owner, serial) == ("me", 2**63)
        assert 0 < start <= end

    @pytest.mark.parametrize(
        ("name", "failure"),
        [
            ("fails in ModelInstanceExecute", (UNAVAILABLE, "no ModelInstanceExecute")),
            (
                "throws in ModelInstanceExecute",
                (INTERNAL, "TRITONBACKEND_ModelInstanceExecute threw an exception: nothing there"),
            ),
            (
                "breaks in ModelInstanceExecute",
                (INTERNAL, "TRITONBACKEND_ModelInstanceExecute threw something that is no exception"),
            ),
        ],
    )
    def test_that_fails_answers_every_request(self, lifecycle, lives, name, failure):
        """A failure of Execute fails each request with the backend's error; the instance goes on."""
        jobs = [Job(), Job()]
        instance = lives(name, owner="me")
        for serial in (1, 3):
            instance.execute(jobs, [wire(), wire()], serial, 0)
            responses = lifecycle.wait(_triton.RESPONSE, _triton.RESPONSE)
            assert responses == [(job, True, failure, None, None) for job in jobs]
            assert lifecycle.wait(_triton.RELEASED, _triton.RELEASED) == [(job, False, None) for job in jobs]
            lifecycle.wait(_triton.EXECUTED)
            # In place of a report: the batch does not count as executed.
            assert lifecycle.wait(_triton.BATCH_STATISTICS) == [("me", False)]

    @pytest.mark.parametrize("verb", ["fails", "throws"])
    def test_that_fails_halfway_answers_the_others(self, lifecycle, lives, verb):
        """A failure of Execute answers only the requests that the backend has not released."""
        jobs = [Job(), Job()]
        lives(f"{verb} in ModelInstanceExecute").execute(jobs, [wire("release first"), wire()], 1, 0)
        first, second = lifecycle.wait(_triton.RESPONSE, _triton.RESPONSE)
        assert first == (jobs[0], True, None, [], None)
        assert second[0] is jobs[1]
        assert second[2] is not None
        released = lifecycle.wait(_triton.RELEASED, _triton.RELEASED)
        assert [job for job, *_ in released] == jobs
        lifecycle.take()
        assert _triton.RESPONSE not in [kind for kind, *_ in lifecycle.events]

    @pytest.mark.parametrize(
        ("jobs", "wires", "error"),
        [
            ([], [], ValueError),
            ([Job()], [], ValueError),
            ((Job(),), (wire(),), (SystemError, TypeError)),
            ([Job(), Job()], [wire(), wire()[:3]], IndexError),
            ([Job()], [wire("\udcff")], UnicodeEncodeError),
        ],
    )
    def test_of_what_is_no_batch_is_none(self, lifecycle, lives, jobs, wires, error):
        """A malformed batch raises in Python and has no events."""
        instance = lives(owner="me")
        with pytest.raises(error):
            instance.execute(jobs, wires, 1, 0)
        instance.finalize()
        lifecycle.take()
        assert lifecycle.events == []


class TestCancelling:
    """Of requests that an instance has."""

    def test_is_seen_by_the_backend(self, lifecycle, lives):
        """It waits for that."""
        instance = lives()
        job = Job()
        instance.execute([Job(), job], [wire("wait for cancellation"), wire()], 7, 0)
        instance.cancel(8)  # not the one that it looks at
        instance.cancel(6)
        instance.cancel(9)
        lifecycle.take()
        assert lifecycle.events == []
        instance.cancel(7)
        assert lifecycle.wait(_triton.RESPONSE, _triton.RESPONSE)[1][0] is job

    def test_finds_an_old_request_among_many(self, lifecycle, lives):
        """Those that are gone are forgotten, those that are not are not."""
        instance = lives(owner="me")
        instance.execute([Job()], [wire("wait for cancellation")], 1, 0)
        for serial in range(2, 1000):
            instance.execute([Job()], [wire()], serial, 0)
        instance.cancel(1)
        assert lifecycle.wait(_triton.EXECUTED)[0][1] == 1
        for serial in range(1000, 2000):
            instance.execute([Job()], [wire()], serial, 0)
            instance.cancel(serial - 500)

    @pytest.mark.parametrize("serial", [-1, 2**64, "1", None])
    def test_wants_a_number(self, lives, serial):
        """Of those that requests have."""
        with pytest.raises((OverflowError, TypeError)):
            lives().cancel(serial)


class TestReadiness:
    """The readiness that a backend reports."""

    def test_is_what_the_backend_says(self, lives):
        """None, or why not."""
        assert lives().is_ready() is None
        assert lives("fails in ModelInstanceReady").is_ready() == "no ModelInstanceReady"
        assert lives("throws in ModelInstanceReady").is_ready() == (
            "TRITONBACKEND_ModelInstanceReady threw an exception: nothing there"
        )

    def test_is_told_while_the_instance_executes(self, lifecycle, lives):
        """Readiness is reported during an execution: a health check must not wait for models."""
        instance = lives()
        instance.execute([Job()], [wire("wait for readiness")], 1, 0)
        lifecycle.wait_for_step("ModelInstanceExecute instance")
        assert instance.is_ready() is None
        lifecycle.wait(_triton.RESPONSE)
