# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The events that threads of instances send to Python: statistics, and that no event is lost."""

import threading
import weakref

from pyruntime.runtime.native import _triton


class Job:
    """Stands for the Python object of a request."""


def wire(id="1"):
    """A request without inputs."""
    return [id, 0, 0, 0, None, "", [], "", None]


class TestStatistics:
    """The statistics that a backend reports."""

    def test_of_batches_and_requests(self, lifecycle, lives):
        """The last report on a request comes with its release."""
        instance = lives(owner="me")
        instance.execute([Job()], [wire("report")], 1, 0)
        assert lifecycle.wait(_triton.BATCH_STATISTICS) == [("me", (7, 1, 2, 3, 2**63))]
        ((_, _, statistics),) = lifecycle.wait(_triton.RELEASED)
        assert statistics == (False, 1, 2, 3, 4)

    def test_of_responses(self, lifecycle, lives):
        """Numbered, with what became of them."""
        instance = lives(owner="me")
        instance.execute([Job()], [wire("report responses")], 1, 0)
        assert lifecycle.wait(*[_triton.RESPONSE_STATISTICS] * 5) == [
            ("me", 0, "empty", 10, 0, 30),
            ("me", 1, "success", 10, 20, 30),
            ("me", 2, "fail", 10, 20, 30),
            ("me", 3, "cancel", 10, 20, 30),
            ("me", 4, "success", 10, 20, 30),
        ]
        lifecycle.wait(_triton.RESPONSE)
        assert lifecycle.learned()[0]["Statistics of nothing"].startswith("Invalid argument: ")


class TestQueue:
    """How what happens comes to Python."""

    def test_jobs_are_given_back(self, lifecycle, lives):
        """At the latest with the news that their batch was executed."""
        instance = lives(owner="me")
        for serial in range(100):
            job = Job()
            seen = weakref.ref(job)
            instance.execute([job], [wire()], serial, 0)
            del job
            lifecycle.wait(_triton.EXECUTED)
            lifecycle.events.clear()
            assert seen() is None

    def test_no_event_is_lost_between_threads(self, lifecycle, lives):
        """Many instances at once, and the descriptor is readable as long as there is something."""
        instances = [lives(f"instance {number}", owner=number) for number in range(4)]
        count = 500

        def give(instance):
            for serial in range(1, count + 1):
                instance.execute([Job()], [wire()], serial, 0)

        threads = [threading.Thread(target=give, args=(instance,)) for instance in instances]
        for thread in threads:
            thread.start()
        executed = lifecycle.wait(*[_triton.EXECUTED] * count * len(instances))
        for thread in threads:
            thread.join()
        for number in range(4):
            assert [serial for owner, serial, *_ in executed if owner == number] == [*range(1, count + 1)]
