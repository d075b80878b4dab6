# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An instance over a real connection whose far end, the stub, is played by the test, and badly."""

import asyncio
import signal
import time
from dataclasses import replace

import pytest

from pyruntime.runtime.instances.capacity import CAPACITY_MIN
from pyruntime.runtime.instances.stub import connection as connection_module
from pyruntime.runtime.instances.stub.batches import CAPACITY_MAX
from pyruntime.runtime.instances.stub.instance import USAGES_MAX, PythonInstance
from pyruntime.runtime.instances.stub.supervisor import QUICK_DEATHS_MAX, ProcessExit
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.utils.channel import FRAME_BYTES_MAX
from pyruntime.utils.errors import Code, InferenceError, LoadError, OutOfMemoryError
from pyruntime.utils.messages import (
    OK,
    PROTOCOL_VERSION,
    REPORT_DROPPED,
    REPORT_MEMORY,
    SENDER,
    Answer,
    Ask,
    Call,
    CheckReady,
    Consumed,
    DropSequences,
    Failed,
    Infer,
    IsReady,
    LoadFailed,
    Measure,
    Ready,
    Release,
    ReleaseHold,
    Reply,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
)
from tests.patience import PATIENCE_S

from ...event_loops import settle

KILLED = ProcessExit(-signal.SIGKILL)
SUCCESS = [OK, "", -1, [], ""]


class TestStart:
    def test_is_ready_once_the_stub_is(self, play):
        """A ready instance has capacity for two batches, and says so."""

        async def scenario(bench):
            assert bench.instance.inflight.capacity == 0
            assert not bench.instance.is_ready
            await bench.start()
            assert bench.instance.is_ready
            assert bench.instance.inflight.capacity == CAPACITY_MIN
            assert [bench.owner.events.get_nowait() for _ in range(2)] == ["changed", "place freed"]

        play(scenario)

    def test_model_fails(self, play):
        """A model that does not load is a LoadError with the reason, and its stub is killed."""

        async def scenario(bench):
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(bench.instance.start(connection))
            await stub.hear_load()
            stub.say(LoadFailed("ValueError: no"))
            with pytest.raises(LoadError, match=r"^ValueError: no$"):
                await starting
            assert stub.process.killed
            assert not bench.instance.is_ready

        play(scenario)

    def test_dies(self, play):
        """A stub that dies while it loads is a LoadError that says how."""

        async def scenario(bench):
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(bench.instance.start(connection))
            await stub.hear_load()
            stub.process.exit(-signal.SIGSEGV)
            stub.hang_up()
            with pytest.raises(LoadError, match="the stub process of m_0 was killed by SIGSEGV while it loaded"):
                await starting

        play(scenario)

    def test_dies_at_the_end_of_its_warm_up(self, play):
        """A stub that is gone when its warm-up has ended well did not load; nor does one that is started again."""

        async def scenario(bench):
            ends = iter([False, True, False])

            async def warm_up(instance, batches, concurrency):
                if next(ends):
                    bench.all_stubs[-1].process.exit(-signal.SIGSEGV)
                    bench.all_stubs[-1].hang_up()
                    await bench.owner.wait("changed")

            bench.instance._spec = replace(bench.plan, warm_up=warm_up)
            (await bench.start()).process.exit(-signal.SIGSEGV)
            lost = await bench.stubs.get()
            await lost.hear_load()
            lost.say(Ready(False, False))
            await bench.restarted()
            assert bench.instance.restarts == 2

            other = PythonInstance(replace(bench.plan, warm_up=warm_up), bench.owner, bench.tasks)
            ends = iter([True])
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(other.start(connection))
            await stub.hear_load()
            stub.say(Ready(False, False))
            with pytest.raises(LoadError, match="the stub process of m_0 was killed by SIGSEGV while it loaded"):
                await starting

        play(scenario)

    def test_cancelled(self, play):
        """Cancelling a start kills the stub."""

        async def scenario(bench):
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(bench.instance.start(connection))
            await stub.hear_load()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert stub.process.killed

        play(scenario)

    def test_another_protocol(self, play, monkeypatch):
        """A stub of another version is refused, and killed."""

        async def scenario(bench):
            monkeypatch.setattr(connection_module, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
            with pytest.raises(LoadError, match="speaks another protocol"):
                await bench.open()
            assert bench.stubs.get_nowait().process.killed

        play(scenario)

    def test_no_process(self, play):
        """A process that cannot be started is a LoadError."""

        async def scenario(bench):
            bench.refuse_to_start = True
            with pytest.raises(LoadError, match="cannot be started: no more processes"):
                await bench.open()

        play(scenario)


class TestExecute:
    def test_answers(self, play):
        """Each request gets its own response, and its memory is free before the response is read."""

        async def scenario(bench):
            stub = await bench.start()
            first, second = [], []
            bench.post(first, second)
            assert bench.instance.inflight.capacity == CAPACITY_MIN - 1
            infer = await stub.hear()
            assert (infer.batch, len(infer.requests), infer.released) == (1, 2, [])
            stub.say(Result(1, [SUCCESS, [3, "no", -1, [], ""]], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            (response,), (failure,) = first, second
            assert type(response) is InferResponse
            assert (response.model_name, response.model_version, response.id, response.outputs) == ("m", 3, "7", [])
            assert (failure.message, failure.code) == ("no", Code.INVALID_ARG)
            assert bench.instance.inflight.capacity >= CAPACITY_MIN
            assert bench.memory.live == 0
            assert bench.statistics.success_count == bench.statistics.failure_count == 1
            assert bench.statistics.execution_count == 1

        play(scenario)

    def test_outputs_are_released(self, play):
        """A response's slot goes back to the stub with the next batch."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            await stub.hear()
            stub.say(Result(1, [[OK, "", 64, [["OUT", "FP32", [1, 2], 64, 8, 0, 0]], '{"a":1}']], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            (response,) = outcome
            assert (response.outputs[0].name, len(response.outputs[0].data)) == ("OUT", 8)
            assert response.parameters == {"a": 1}
            response.release()
            bench.post([])
            assert (await stub.hear()).released == [64]
            del response, outcome[:]

        play(scenario)

    def test_large_outputs_are_released_at_once(self, play):
        """A large slot does not wait for the next batch."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            await stub.hear()
            size = 1 << 20
            stub.say(Result(1, [[OK, "", 0, [["OUT", "UINT8", [1, size], 0, size, 0, 0]], ""]], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            outcome.pop().release()
            assert await stub.hear() == Release([0])

        play(scenario)

    def test_execute_failed(self, play):
        """A batch that failed as a whole fails for every client, and the instance goes on."""

        async def scenario(bench):
            stub = await bench.start()
            first, second = [], []
            bench.post(first, second)
            await stub.hear()
            stub.say(Failed(1, "ValueError: no", [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            assert [first[0].message, second[0].message] == ["ValueError: no"] * 2
            assert first[0].code is Code.INTERNAL
            assert bench.instance.is_ready
            assert bench.memory.live == 0

        play(scenario)

    def test_too_large_to_send(self, play):
        """A batch that fits no frame fails, and takes no place."""

        async def scenario(bench):
            await bench.start()
            outcome = []
            request = InferRequest("m", parameters={"a": "x" * FRAME_BYTES_MAX})
            bench.instance.inflight.execute([bench.job(outcome, request)])
            assert "cannot be sent to m_0" in outcome[0].message
            assert bench.instance.inflight.capacity == CAPACITY_MIN

        play(scenario)

    @pytest.mark.parametrize("times", [(0, 0), (2**63, 0), (0, 2**63), (-(2**63), -1), (2**63, 2**63)])
    def test_nonsensical_times(self, play, times):
        """For all times that a stub reports, no statistic is negative or longer than the time that passed."""

        async def scenario(bench):
            stub = await bench.start()
            began, outcome = time.monotonic_ns(), []
            bench.post(outcome)
            await stub.hear()
            stub.say(Result(1, [SUCCESS], [], *times))
            while not outcome:
                await bench.owner.wait("place freed")
            passed = time.monotonic_ns() - began
            statistics = bench.statistics
            assert statistics.success_count == 1
            for ns in (statistics.queue_ns, statistics.compute_input_ns, statistics.compute_infer_ns,
                       statistics.compute_output_ns):  # fmt: skip
                assert 0 <= ns <= passed

        play(scenario)


class TestPlaces:
    def test_of_short_batches(self, play):
        """An instance whose batches take no time gets more of them ahead, up to a limit."""

        async def scenario(bench):
            stub = await bench.start()
            for number in range(1, 50):
                bench.post([])
                stub.say(Result(number, [SUCCESS], [], 0, 0))
                while not (free := bench.owner.events.empty()):
                    bench.owner.events.get_nowait()
                await bench.owner.wait("place freed")
                assert free
                assert CAPACITY_MIN <= bench.instance.inflight.capacity <= CAPACITY_MAX
            assert bench.instance.inflight.capacity == CAPACITY_MAX

        play(scenario)

    def test_many_posted_when_it_dies(self, play):
        """All but the first go back, in an order that keeps the oldest in front."""

        async def scenario(bench):
            stub = await bench.start()
            bench.instance.inflight.capacity = CAPACITY_MAX
            outcomes = [[] for _ in range(CAPACITY_MAX)]
            batches = [bench.post(outcome) for outcome in outcomes]
            stub.process.exit(1)
            await bench.restarted()
            assert [len(outcome) for outcome in outcomes] == [1] + [0] * (CAPACITY_MAX - 1)
            assert sorted(map(id, bench.owner.put_backs)) == sorted(map(id, batches[1:]))
            assert bench.owner.put_backs[-1] is batches[1]
            for batch in batches[1:]:
                batch[0].free()
            assert bench.memory.live == 0

        play(scenario)


class TestRetained:
    def test_memory_stays_until_it_is_retired(self, play):
        """Memory that a model retains is not given to others until it is retired."""

        async def scenario(bench):
            stub = await bench.start()
            bench.post([], [])
            await stub.hear()
            stub.say(Result(1, [SUCCESS, SUCCESS], [1], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            assert bench.memory.live == 1
            bench.post([])
            await stub.hear()
            stub.say(Failed(3, "no", [0], 0, 0), Retired([2, 3]))
            await bench.owner.wait("place freed")
            assert bench.memory.live == 0

        play(scenario)

    def test_is_freed_when_the_stub_dies(self, play):
        """A dead stub holds nothing."""

        async def scenario(bench):
            stub = await bench.start()
            bench.post([])
            await stub.hear()
            stub.say(Result(1, [SUCCESS], [0], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            assert bench.memory.live == 1
            stub.process.exit(1)
            await bench.restarted()
            assert bench.memory.live == 0

        play(scenario)


class TestDeath:
    def test_idle(self, play):
        """The death of an idle stub fails no request; another stub is started."""

        async def scenario(bench):
            stub = await bench.start()
            stub.process.exit(-signal.SIGSEGV)
            again = await bench.restarted()
            assert again is not stub
            assert bench.instance.inflight.capacity == CAPACITY_MIN

        play(scenario)

    def test_with_two_batches_posted(self, play):
        """The first was running and fails; the second had not begun and goes back."""

        async def scenario(bench):
            stub = await bench.start()
            running, waiting = [], []
            bench.post(running)
            batch = bench.post(waiting)
            assert bench.instance.inflight.capacity == 0
            stub.process.exit(-signal.SIGSEGV)
            stub.hang_up()
            await bench.restarted()
            assert running[0].message.startswith("Stub process 'm_0' is not healthy.")
            assert "killed by SIGSEGV" in running[0].message
            assert waiting == []
            assert bench.owner.put_backs == [batch]
            assert bench.memory.live == 1
            batch[0].free()

        play(scenario)

    def test_after_the_first_was_answered(self, play):
        """The first batch stays answered; the second was running when the stub died."""

        async def scenario(bench):
            stub = await bench.start()
            answered, running, waiting = [], [], []
            bench.post(answered)
            bench.post(running)
            await stub.hear()
            stub.say(Result(1, [SUCCESS], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            batch = bench.post(waiting)
            stub.process.exit(1)
            await bench.restarted()
            assert type(answered[0]) is InferResponse
            assert "exited with code 1" in running[0].message
            assert bench.owner.put_backs == [batch]
            batch[0].free()

        play(scenario)

    def test_right_behind_an_answer(self, play):
        """An answer that was sent before the death counts, even if both arrive at once."""

        async def scenario(bench):
            stub = await bench.start()
            answered, running = [], []
            bench.post(answered)
            bench.post(running)
            stub.say(Result(1, [SUCCESS], [], 0, 0))
            stub.process.exit(1)
            stub.hang_up()
            await bench.restarted()
            assert type(answered[0]) is InferResponse
            assert "exited with code 1" in running[0].message
            assert bench.owner.put_backs == []

        play(scenario)

    def test_hangs_up(self, play):
        """A stub that hangs up is killed."""

        async def scenario(bench):
            stub = await bench.start()
            running = []
            bench.post(running)
            stub.hang_up()
            await bench.restarted()
            assert stub.process.killed
            assert running[0].message.startswith("Stub process 'm_0' is not healthy.")

        play(scenario)

    def test_release_after_it(self, play):
        """A response of a dead stub may still be read and released."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            await stub.hear()
            stub.say(Result(1, [[OK, "", 64, [["OUT", "FP32", [1, 2], 64, 8, 0, 0]], ""]], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            stub.process.exit(1)
            again = await bench.restarted()
            assert bytes(outcome[0].outputs[0].data) == bytes(8)
            outcome.pop().release()
            bench.post([])
            assert (await again.hear()).released == []

        play(scenario)

    def test_again_and_again(self, play, monkeypatch):
        """An instance that dies too often is down, and says why, until a process is ready again."""

        async def scenario(bench):
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay, call, *args: loop.call_soon(call, *args))
            stub = await bench.start()
            for _ in range(QUICK_DEATHS_MAX - 1):
                stub.process.exit(3)
                stub = await bench.restarted()
            stub.process.exit(3)
            while not bench.instance.down:
                await bench.owner.wait("changed")
            assert "exited with code 3" in bench.instance.down
            assert bench.instance.inflight.capacity == 0
            await bench.restarted()
            assert bench.instance.down == ""
            assert bench.instance.is_ready

        play(scenario)

    def test_restart_that_cannot_start(self, play, monkeypatch):
        """Where no process can be started any more the instance is down in the end."""

        async def scenario(bench):
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay, call, *args: loop.call_soon(call, *args))
            stub = await bench.start()
            bench.refuse_to_start = True
            stub.process.exit(3)
            while not bench.instance.down:
                await bench.owner.wait("changed")
            assert "no more processes" in bench.instance.down

        play(scenario)

    @pytest.mark.parametrize("what", ["descriptors", "memory"])
    def test_restart_without_resources(self, play, monkeypatch, what):
        """However often a host is out of descriptors or memory, the instance comes back when there are some again."""
        failures = 3 * QUICK_DEATHS_MAX

        async def scenario(bench):
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay, call, *args: loop.call_soon(call, *args))
            stub = await bench.start()
            left = failures
            there = connection_module.create_region if what == "memory" else connection_module.socket.socketpair

            def scarce(*args):
                nonlocal left
                if not left:
                    return there(*args)
                left -= 1
                raise OutOfMemoryError("no memory") if what == "memory" else OSError(24, "Too many open files")

            if what == "memory":
                monkeypatch.setattr(connection_module, "create_region", scarce)
            else:
                monkeypatch.setattr(connection_module.socket, "socketpair", scarce)
            stub.process.exit(3)
            await bench.restarted()
            assert left == 0
            assert bench.instance.is_ready
            assert bench.instance.restarts == 1
            assert bench.instance.down == ""

        play(scenario)

    def test_restarted_model_fails(self, play, monkeypatch):
        """A model that does not load again counts as a death."""

        async def scenario(bench):
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay, call, *args: loop.call_soon(call, *args))
            stub = await bench.start()
            stub.process.exit(3)
            for _ in range(QUICK_DEATHS_MAX - 1):
                stub = await bench.stubs.get()
                await stub.hear_load()
                stub.say(LoadFailed("ValueError: no"))
            while not bench.instance.down:
                await bench.owner.wait("changed")
            assert bench.instance.inflight.capacity == 0

        play(scenario)


GOOD_TENSOR = ["OUT", "FP32", [1, 2], 0, 8, 0, 0]
HOSTILE = {
    "another batch": [Result(2, [SUCCESS], [], 0, 0)],
    "batch zero": [Result(0, [SUCCESS], [], 0, 0)],
    "failure of another batch": [Failed(2, "no", [], 0, 0)],
    "too few responses": [Result(1, [], [], 0, 0)],
    "too many responses": [Result(1, [SUCCESS] * 2, [], 0, 0)],
    "nothing in place of a response": [Result(1, [False], [], 0, 0)],
    "another number in place of a response": [Result(1, [1], [], 0, 0)],
    "text for a response": [Result(1, ["abcde"], [], 0, 0)],
    "object for a response": [Result(1, [{"a": 1}], [], 0, 0)],
    "response of four": [Result(1, [SUCCESS[:4]], [], 0, 0)],
    "response of six": [Result(1, [[*SUCCESS, ""]], [], 0, 0)],
    "unknown code": [Result(1, [[99, "no", -1, [], ""]], [], 0, 0)],
    "code that is text": [Result(1, [["OK", "no", -1, [], ""]], [], 0, 0)],
    "code that is a list": [Result(1, [[[], "no", -1, [], ""]], [], 0, 0)],
    "slot that is text": [Result(1, [[OK, "", "0", [GOOD_TENSOR], ""]], [], 0, 0)],
    "slot that is none": [Result(1, [[OK, "", None, [GOOD_TENSOR], ""]], [], 0, 0)],
    "slot that is a fraction": [Result(1, [[OK, "", 0.5, [GOOD_TENSOR], ""]], [], 0, 0)],
    "tensors that are none": [Result(1, [[OK, "", 0, None, ""]], [], 0, 0)],
    "tensor outside": [Result(1, [[OK, "", 0, [["OUT", "FP32", [1, 2], 1 << 60, 8, 0, 0]], ""]], [], 0, 0)],
    "datatype that is a list": [Result(1, [[OK, "", 0, [["OUT", [], [1, 2], 0, 8, 0, 0]], ""]], [], 0, 0)],
    "parameters that are no JSON": [Result(1, [[OK, "", 0, [GOOD_TENSOR], "{"]], [], 0, 0)],
    "second response bad": [Result(1, [[OK, "", 0, [GOOD_TENSOR], ""], "text"], [], 0, 0)],
    "retained beyond": [Result(1, [SUCCESS], [1], 0, 0)],
    "retained before": [Result(1, [SUCCESS], [-1], 0, 0)],
    "retained text": [Result(1, [SUCCESS], ["0"], 0, 0)],
    "retained list": [Result(1, [SUCCESS], [[0]], 0, 0)],
    "retained twice": [Result(1, [SUCCESS], [0, 0], 0, 0)],
    "retained by a failure, beyond": [Failed(1, "no", [7], 0, 0)],
    "retired never retained": [Retired([1])],
    "retired nothing": [Retired([None])],
    "retired of lists": [Retired([[1]])],
    "retired of objects": [Retired([{}])],
}


class TestHostile:
    @pytest.mark.parametrize("messages", HOSTILE.values(), ids=HOSTILE)
    def test_is_killed(self, play, messages):
        """A stub with a bad answer is killed: the running batch fails, the next one is put back, no memory leaks."""

        async def scenario(bench):
            stub = await bench.start()
            running, waiting = [], []
            bench.post(running)
            batch = bench.post(waiting)
            stub.say(*messages)
            await bench.restarted()
            assert stub.process.killed
            assert [type(outcome) for outcome in running] == [InferenceError]
            assert running[0].message.startswith("Stub process 'm_0' is not healthy.")
            assert waiting == []
            assert bench.owner.put_backs == [batch]
            batch[0].free()
            assert bench.memory.live == 0

        play(scenario)

    def test_answers_nothing_that_was_asked(self, play):
        """An answer without a question kills the stub."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Result(1, [], [], 0, 0))
            await bench.restarted()
            assert stub.process.killed

        play(scenario)

    def test_answers_twice(self, play):
        """The second answer to a batch is one too many; the first stands."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            stub.say(Result(1, [SUCCESS], [], 0, 0), Result(1, [SUCCESS], [], 0, 0))
            await bench.restarted()
            assert stub.process.killed
            assert [type(each) for each in outcome] == [InferResponse]

        play(scenario)

    def test_retires_twice(self, play):
        """Memory that was retired is not retired again."""

        async def scenario(bench):
            stub = await bench.start()
            bench.post([])
            stub.say(Result(1, [SUCCESS], [0], 0, 0), Retired([1]), Retired([1]))
            await bench.restarted()
            assert stub.process.killed
            assert bench.memory.live == 0

        play(scenario)

    @pytest.mark.parametrize("serial", [2, 0, -1, [1], {}, "1", 1.0, True, None], ids=repr)
    def test_retires_something_else(self, play, serial):
        """While something is retained, to retire anything else kills the stub."""

        async def scenario(bench):
            stub = await bench.start()
            bench.post([])
            stub.say(Result(1, [SUCCESS], [0], 0, 0), Retired([serial]))
            await bench.restarted()
            assert stub.process.killed
            assert bench.memory.live == 0

        play(scenario)

    def test_answers_behind_the_nonsense_do_not_count(self, play):
        """After nonsense nothing that the stub says is heard."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            stub.say(Result(9, [], [], 0, 0))
            stub.say(Result(1, [SUCCESS], [], 0, 0))
            await bench.restarted()
            assert stub.process.killed
            assert [type(each) for each in outcome] == [InferenceError]

        play(scenario)


CALL = ["", 0, 0, 0, None, "", [["IN", "FP32", [1, 2], bytes(8), 8, 0, 0]], "", None]


class TestWhatModelsAsk:
    """Of the server, and of each other."""

    def test_question(self, play):
        """A question goes to the server, and its answer to the stub."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(7, "load_model", ["m", "", {}]))
            await settle()
            ((owner, loading, method, arguments, reply),) = bench.server.questions
            assert (loading, method, arguments) == ("", "load_model", ["m", "", {}])
            reply(OK, 0.5)
            assert await stub.hear() == Reply(7, OK, 0.5)
            assert bench.server.owners_gone == []
            stub.process.exit(1)
            await bench.restarted()
            assert bench.server.owners_gone == [owner]

        play(scenario)

    def test_question_while_it_loads(self, play):
        """The question names the model that is being loaded."""

        async def scenario(bench):
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(bench.instance.start(connection))
            await stub.hear_load()
            stub.say(Ask(7, "load_model", ["m", "", {}]))
            await settle()
            ((_, loading, _, _, reply),) = bench.server.questions
            assert loading == "m"
            reply(3, "no")
            assert await stub.hear() == Reply(7, 3, "no")
            stub.say(Ready(False, False))
            await starting

        play(scenario)

    def test_what_is_merely_told(self, play):
        """`tell` and `measure` have no reply."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(0, "drop_metric", [3]), Measure(3, "set", 2.0), Ask(1, "metric_value", [3]))
            await settle()
            (owner, _, _, _, tell), (_, _, _, _, reply) = bench.server.questions
            assert bench.server.measures == [(owner, 3, "set", 2.0)]
            tell(OK, None)
            reply(OK, 2.0)
            assert await stub.hear() == Reply(1, OK, 2.0)

        play(scenario)

    def test_memory_usage(self, play):
        """The memory that the model says it uses is known until it says another, or its stub dies."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(0, REPORT_MEMORY, [[1, 0, 5], [2, 3, 1 << 40]]), Ask(0, REPORT_MEMORY, [[2, 3, 7], [0, 0, 1]]))
            await settle()
            assert bench.instance.memory_usage == [(2, 3, 7), (0, 0, 1)]
            assert not bench.server.questions
            stub.process.exit(-signal.SIGSEGV)
            stub.hang_up()
            await settle()
            assert list(bench.instance.memory_usage) == []

        play(scenario)

    @pytest.mark.parametrize(
        "usage",
        [
            [3],
            [[1, 0]],
            [[1, 0, "5"]],
            [[1, 0, -5]],
            [[1, 1 << 63, 5]],
            [[1, 0, 5]] * (USAGES_MAX + 1),
        ],
    )
    def test_memory_usage_that_is_none(self, play, usage):
        """A stub that reports anything else, or too much, is killed."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(0, REPORT_MEMORY, usage))
            await settle()
            assert list(bench.instance.memory_usage) == []
            assert stub.process.killed

        play(scenario)

    def test_dropped_output(self, play, caplog):
        """An output that the model's stub has dropped is logged once, whichever stub says so."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(0, REPORT_DROPPED, ["EXTRA"]), Ask(0, REPORT_DROPPED, ["EXTRA"]))
            await settle()
            assert not bench.server.questions

        play(scenario)
        said = "output 'EXTRA' of model 'm' is dropped, because the configuration declares 'OUT' (model.py; said once)"
        assert [record.getMessage() for record in caplog.records if "EXTRA" in record.getMessage()] == [said]

    @pytest.mark.parametrize("arguments", [[], [1], ["X", "Y"]])
    def test_dropped_output_that_is_none(self, play, arguments):
        """A stub that reports anything else is killed."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(0, REPORT_DROPPED, arguments))
            await settle()
            assert stub.process.killed

        play(scenario)

    @pytest.mark.parametrize("value", ["x" * FRAME_BYTES_MAX, object()], ids=["too large", "nothing that can be sent"])
    def test_answer_that_cannot_be_sent(self, play, value):
        """An answer that fits no frame fails that question only."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(7, "load_model", ["x" * 99, "", {}]))
            await settle()
            bench.server.questions[0][-1](OK, value)
            reply = await stub.hear()
            assert (reply.question, reply.code) == (7, Code.INTERNAL)
            assert reply.value.startswith("the answer cannot be sent: ")
            assert bench.instance.is_ready

        play(scenario)

    def test_answer_to_a_stub_that_is_gone(self, play):
        """A reply to a stub that is gone is dropped."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Ask(7, "load_model", ["m", "", {}]))
            await settle()
            stub.process.exit(1)
            await bench.restarted()
            bench.server.questions[0][-1](OK, None)

        play(scenario)

    def test_call(self, play):
        """A stub whose batch waits for a call gets one batch at a time from then on."""

        async def scenario(bench):
            stub = await bench.start()
            bench.post([])
            await stub.hear()
            stub.say(Call(1, "absent", -1, CALL, False, 1))
            answer = await stub.hear()
            assert (answer.call, answer.final) == (1, True)
            assert "absent" in answer.response[1]
            assert bench.instance.inflight.capacity == 0
            stub.say(Result(1, [SUCCESS], [], 0, 0))
            await bench.owner.wait("place freed")
            await bench.owner.wait("place freed")
            assert bench.instance.inflight.capacity == 1

        play(scenario)

    def test_call_that_nothing_waits_for(self, play):
        """A call that no batch waits for changes nothing."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(Call(1, "absent", -1, CALL, False, 0))
            assert type(await stub.hear()) is Answer
            assert bench.instance.inflight.capacity == CAPACITY_MIN

        play(scenario)

    @pytest.mark.parametrize(
        "message",
        [
            Call(1, "m", -1, [], False, 0), Call(1, "m", -1, ["", 0, 0, 0, 5, "", [], "", None], False, 0),
            Consumed([[[1], 1]]),
            ReleaseHold([1]), Requeue([1]), Respond(1, None, True), Retired([1]),
        ],
        ids=repr,
    )  # fmt: skip
    def test_nonsense(self, play, message):
        """A stub that breaks the protocol is killed."""

        async def scenario(bench):
            stub = await bench.start()
            stub.say(message)
            await bench.restarted()
            assert stub.process.killed

        play(scenario)


class TestDropSequences:
    def test_of_a_model_with_it(self, play):
        """The stub is told, if it is there and its model has the method."""

        async def scenario(bench):
            bench.instance.drop_sequences([1])
            stub = await bench.start(drops=True)
            bench.instance.drop_sequences([2, "three"])
            assert await stub.hear() == DropSequences([2, "three"])

        play(scenario)

    def test_of_a_model_without_it(self, play):
        """Most models are not told."""

        async def scenario(bench):
            stub = await bench.start(checks=True)
            bench.instance.drop_sequences([1])
            bench.instance.check_ready(lambda is_ready: None)
            assert await stub.hear() == CheckReady()

        play(scenario)


class TestIsReady:
    def test_of_a_model_without_it(self, play):
        """A model that has no is_ready is ready while its instance is."""

        async def scenario(bench):
            told = []
            bench.instance.check_ready(told.append)
            assert told == [False]
            await bench.start()
            bench.instance.check_ready(told.append)
            assert told == [False, True]

        play(scenario)

    def test_of_a_model_with_it(self, play):
        """Otherwise the model is asked, also while it executes."""

        async def scenario(bench):
            stub = await bench.start(checks=True)
            told = asyncio.Queue()
            bench.post([])
            await stub.hear()
            bench.instance.check_ready(told.put_nowait)
            assert await stub.hear() == CheckReady()
            stub.say(IsReady(False, ""))
            assert await told.get() is False

        play(scenario)

    def test_of_a_stub_that_dies(self, play):
        """A stub that dies is not ready, and its successor is not asked."""

        async def scenario(bench):
            stub = await bench.start(checks=True)
            told = asyncio.Queue()
            bench.instance.check_ready(told.put_nowait)
            stub.process.exit(1)
            assert await told.get() is False
            await bench.restarted()

        play(scenario)

    def test_nobody_asked(self, play):
        """An answer to no question is ignored."""

        async def scenario(bench):
            stub = await bench.start(checks=True)
            stub.say(IsReady(True, ""))
            bench.post([])
            await stub.hear()
            assert bench.instance.is_ready

        play(scenario)


class TestConcurrency:
    def test_is_told(self, play):
        """The stub learns how many threads it is to have, and is given as many batches."""

        async def scenario(bench):
            connection = await bench.open()
            stub = bench.stubs.get_nowait()
            starting = asyncio.ensure_future(bench.instance.start(connection))
            load = await stub.hear_load()
            assert (load.concurrency, load.requests_region) == (3, bench.memory.region.number)
            stub.say(Ready(False, False))
            await starting
            assert bench.instance.inflight.capacity == 3

        play(scenario, concurrency=3)

    def test_death(self, play):
        """All batches were running, so all of them fail."""

        async def scenario(bench):
            stub = await bench.start()
            outcomes = [[], [], []]
            for outcome in outcomes:
                bench.post(outcome)
            stub.process.exit(1)
            await bench.restarted()
            assert [[type(each) for each in outcome] for outcome in outcomes] == [[InferenceError]] * 3
            assert bench.owner.put_backs == []
            assert bench.memory.live == 0

        play(scenario, concurrency=3)


class TestStop:
    def test_lets_the_stub_finish(self, play):
        """A stub that is stopped first answers its batches."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            stopping = asyncio.ensure_future(bench.instance.stop(PATIENCE_S))
            assert type(await stub.hear()) is Infer
            stub.say(Result(1, [SUCCESS], [], 0, 0))
            assert await stub.hear() == Stop()
            assert bench.instance.inflight.capacity == 0
            stub.say(Stopped())
            stub.process.exit(0)
            stub.hang_up()
            await stopping
            assert type(outcome[0]) is InferResponse
            assert bench.instance.inflight.capacity == 0
            assert not stub.process.killed
            assert bench.stubs.empty()

        play(scenario)

    def test_lets_senders_finish(self, play):
        """Requests that senders have yet to answer are answered before the stop."""

        async def scenario(bench):
            stub = await bench.start()
            outcome = []
            bench.post(outcome)
            await stub.hear()
            stub.say(Result(1, [SENDER], [], 0, 0))
            stopping = asyncio.ensure_future(bench.instance.stop(PATIENCE_S))
            await settle()
            assert bench.instance.inflight.capacity == 0
            stub.say(Respond(1, SUCCESS, True))
            assert await stub.hear() == Stop()
            assert type(outcome[0]) is InferResponse
            stub.say(Stopped())
            stub.process.exit(0)
            await stopping

        play(scenario)

    def test_a_stub_that_dies_meanwhile(self, play):
        """A stub that dies while it finishes need not be stopped; batches that had not begun are put back."""

        async def scenario(bench):
            stub = await bench.start()
            running, waiting = [], []
            bench.post(running)
            batch = bench.post(waiting)
            stopping = asyncio.ensure_future(bench.instance.stop(PATIENCE_S))
            await asyncio.sleep(0)
            stub.process.exit(1)
            stub.hang_up()
            await stopping
            assert [type(each) for each in running] == [InferenceError]
            assert bench.owner.put_backs in ([batch], [])
            assert bool(bench.owner.put_backs) != bool(waiting)
            for job in batch:
                job.free()
            assert bench.memory.live == 0
            assert bench.stubs.empty()

        play(scenario)

    def test_lets_the_stub_exit(self, play):
        """A stub that said its last word and hung up may still clean up behind itself: it is not killed for that."""

        async def scenario(bench):
            stub = await bench.start()
            stopping = asyncio.ensure_future(bench.instance.stop(PATIENCE_S))
            assert await stub.hear() == Stop()
            stub.say(Stopped())
            stub.hang_up()
            for _ in range(100):  # many more turns of the loop than the message needs
                await asyncio.sleep(0)
            assert not stub.process.killed
            stub.process.exit(0)
            await stopping

        play(scenario)

    def test_kills_one_that_does_not(self, play):
        """A stub that does not stop in time is killed, and its requests fail."""

        async def scenario(bench):
            stub = await bench.start()
            running, waiting = [], []
            bench.post(running)
            bench.post(waiting)
            await bench.instance.stop(0)
            assert stub.process.killed
            assert [type(outcome[0]) for outcome in (running, waiting)] == [InferenceError] * 2
            assert bench.owner.put_backs == []
            assert bench.memory.live == 0

        play(scenario)

    def test_while_a_restart_is_due(self, play, monkeypatch):
        """A restart that is due is forgotten."""

        async def scenario(bench):
            loop = asyncio.get_running_loop()
            later = []
            monkeypatch.setattr(loop, "call_later", lambda *args: later.append(args) or asyncio.Handle(int, (), loop))
            stub = await bench.start()
            bench.owner.events = asyncio.Queue()
            stub.process.exit(1)
            await bench.owner.wait("changed")
            assert len(later) == 1
            await bench.instance.stop(PATIENCE_S)
            assert bench.stubs.empty()

        play(scenario)

    def test_before_it_started(self, play):
        """An instance that never started has nothing to stop."""

        async def scenario(bench):
            await bench.instance.stop(PATIENCE_S)

        play(scenario)


def test_repr(play):
    """An instance shows its state and how many batches it has."""

    async def scenario(bench):
        await bench.start()
        batch = bench.post([])
        assert repr(bench.instance) == "<PythonInstance m_0 READY [1 in flight]>"
        assert len(batch) == 1

    play(scenario)
