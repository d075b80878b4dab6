# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a sequence."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyruntime.runtime.config.spec import StateSpec
from pyruntime.runtime.execution.job import Job, discard
from pyruntime.runtime.execution.states import SequenceStates, State, StateMemory, no_copies
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_GPU, RequestOptions

SPECS = (
    StateSpec("A_IN", "A_OUT", "INT32", (-1,), (1, 1), bytes(4), 4),
    StateSpec("B_IN", "B_OUT", "BYTES", (1,), (1, 1), b"\x01\0\0\0x", 5),
)


@pytest.fixture
def states():
    return SequenceStates(SPECS, "m", no_copies)


def test_begins_as_configured(states):
    """Before there was an update the inputs are the initial states."""
    assert states.inputs == [
        State("A_IN", "INT32", [1, 1], bytes(4), 4),
        State("B_IN", "BYTES", [1, 1], b"\x01\0\0\0x", 5),
    ]
    assert repr(states) == "<SequenceStates m [A_IN, B_IN]>"


def test_update(states):
    """An output of the model is the input of the next request, whose name is another one."""
    states.update("A_OUT", "INT32", [1, 2], memoryview(bytes(range(8))))
    states.update("B_OUT", "BYTES", [1, 1], b"\x02\0\0\0yz")
    assert states.inputs == [
        State("A_IN", "INT32", [1, 2], bytes(range(8)), 8),
        State("B_IN", "BYTES", [1, 1], b"\x02\0\0\0yz", 6),
    ]


def test_update_copies(states):
    """The memory that an update came in may be used again."""
    memory = bytearray(b"abcd")
    states.update("A_OUT", "INT32", [1, 1], memoryview(memory))
    memory[:] = b"wxyz"
    assert states.inputs[0].contents == b"abcd"


def test_sequences_have_their_own():
    """Sequences do not share states."""
    first, second = (SequenceStates(SPECS, "m", no_copies) for _ in range(2))
    first.update("A_OUT", "INT32", [1, 1], b"abcd")
    assert second.inputs[0].contents == bytes(4)


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (("A_IN", "INT32", [1, 1], bytes(4)), "'A_IN'. State configuration is missing for model 'm'."),
        (("A_OUT", "FP32", [1, 1], bytes(4)), "'A_OUT'. Its datatype is INT32, got FP32"),
        (("A_OUT", "INT32", [1], bytes(4)), "'A_OUT'. Its shape is [1, -1], got [1]"),
        (("A_OUT", "INT32", [2, 1], bytes(8)), "'A_OUT'. Its shape is [1, -1], got [2, 1]"),
        (("A_OUT", "INT32", [1, 2], bytes(7)), "'A_OUT'. It has 8 bytes, got 7"),
    ],
)
def test_refused(states, update, why):
    """An update of an unknown state, or with wrong contents, is refused and changes nothing."""
    with pytest.raises(InferenceError) as caught:
        states.update(*update)
    assert (caught.value.message, caught.value.code) == (f"unable to add state {why}", Code.INVALID_ARG)
    assert states.inputs[0].contents == bytes(4)


class Region:
    number = 7


def memory(freed):
    """Memory that notes when it is freed, with its creator as the only user."""
    return StateMemory(Region(), lambda: freed.append(1))


def a_job():
    return Job("", RequestOptions(1), [("IN", "INT32", [1], 0, 4, 0, 0)], 1, None, [], discard, 0)


class TestInSharedMemory:
    def test_update(self, states):
        """States of one response use its memory until each of them is replaced."""
        freed = []
        first = memory(freed)
        states.update_all([("A_OUT", "INT32", [1, 1], 64, 4), ("B_OUT", "BYTES", [1, 1], 128, 5)], first)
        first.free()
        assert [state[:5] for state in states.inputs] == [
            ("A_IN", "INT32", [1, 1], 64, 4),
            ("B_IN", "BYTES", [1, 1], 128, 5),
        ]
        second = memory([])
        states.update_all([("A_OUT", "INT32", [1, 1], 256, 4)], second)
        assert freed == []
        states.update_all([("B_OUT", "BYTES", [1, 1], 256, 5)], second)
        assert freed == [1]

    def test_all_or_none(self, states):
        """If one state of a response is refused, none of them is updated."""
        freed = []
        refused = memory(freed)
        with pytest.raises(InferenceError, match="B_OUT"):
            states.update_all([("A_OUT", "INT32", [1, 1], 64, 4), ("B_OUT", "INT32", [1, 1], 128, 4)], refused)
        refused.free()
        assert freed == [1]
        assert states.inputs[0].contents == bytes(4)

    def test_drop(self, states):
        """The end of a sequence frees its states. What its last request returns is not kept any more."""
        freed = []
        for _ in range(2):
            each = memory(freed)
            states.update_all([("A_OUT", "INT32", [1, 1], 64, 4)], each)
            each.free()
            states.drop()
        assert freed == [1, 1]
        assert states.inputs == []


class TestChangedInPlace:
    """A state that a stub changes in place has memory of its own from the beginning of its sequence."""

    SPECS = (
        StateSpec("A_IN", "A_OUT", "INT32", (1,), (1, 1), 1 << 36, 4, is_shared=True),
        StateSpec("B_IN", "B_OUT", "INT32", (1,), (1, 1), 1 << 36, 4, is_shared=True),
        StateSpec("C_IN", "C_OUT", "INT32", (1,), (1, 1), 1 << 36, 4),
        StateSpec("D_IN", "D_OUT", "INT32", (1,), (1, 1), bytes(4), 4, is_shared=True),
    )

    def test_copies(self):
        """What is not changed in place, or not in shared memory, is not copied."""
        freed = []
        copies = iter([(64, memory(freed)), (128, memory(freed))])
        states = SequenceStates(self.SPECS, "m", lambda spec: next(copies))
        assert [state.contents for state in states.inputs] == [64, 128, 1 << 36, bytes(4)]
        job = a_job()
        job.give_states(states)
        states.drop()
        assert freed == []
        job.free()
        assert freed == [1, 1]

    def test_no_memory(self):
        """If there is no memory for one of them, the others are free."""
        freed = []

        def copied(spec):
            if spec.input_name == "A_IN":
                return 64, memory(freed)
            raise InferenceError("no room")

        with pytest.raises(InferenceError, match="no room"):
            SequenceStates(self.SPECS, "m", copied)
        assert freed == [1]

    def test_returned(self):
        """A model that returns it as well is wrong: there would be two of them."""
        states = SequenceStates(self.SPECS, "m", lambda spec: (64, memory([])))
        with pytest.raises(InferenceError) as caught:
            states.update_all([("A_OUT", "INT32", [1, 1], 512, 4)], memory([]))
        assert caught.value.message == (
            "unable to add state 'A_OUT'. The model changes it in place, by use_same_buffer_for_input_output, and does "
            "not return it"
        )
        assert states.inputs[0].contents == 64


class TestJob:
    def test_inputs(self, states):
        """A request has the states behind its own inputs, and keeps their memory until it is freed."""
        freed = []
        first = memory(freed)
        states.update_all([("A_OUT", "INT32", [1, 1], 64, 4)], first)
        first.free()
        job = a_job()
        job.give_states(states)
        assert job.tensors == [
            ("IN", "INT32", [1], 0, 4, 0, 0),
            ("A_IN", "INT32", [1, 1], 64, 4, 0, 0),
            ("B_IN", "BYTES", [1, 1], b"\x01\0\0\0x", 5, 0, 0),
        ]
        assert job.regions == tuple(first.regions)
        states.drop()
        assert freed == []
        job.free()
        assert freed == [1]

    def test_on_a_gpu(self, states):
        """A state on a GPU is an input there, and its memory one more region of the job."""
        on_gpu = Region()
        kept = StateMemory(Region(), lambda: None, [on_gpu])
        states.update_all([("A_OUT", "INT32", [1, 1], 64, 4), ("B_OUT", "BYTES", [1, 1], 128, 5)], kept, {"A_OUT": 2})
        job = a_job()
        job.give_states(states)
        assert job.tensors[1:] == [
            ("A_IN", "INT32", [1, 1], 64, 4, MEMORY_GPU, 2),
            ("B_IN", "BYTES", [1, 1], 128, 5, 0, 0),
        ]
        assert job.regions[-1] is on_gpu
        assert len(job.regions) == 2

    def test_again(self, states):
        """A request that is executed again has the states of then, and does not keep earlier ones."""
        freed = []
        job = a_job()
        for _ in range(3):
            each = memory(freed)
            states.update_all([("A_OUT", "INT32", [1, 1], 64, 4)], each)
            each.free()
            job.give_states(states)
        assert freed == [1, 1]
        assert len(job.tensors) == 3
        assert len(job.regions) == 3  # of three stubs, in this test


class Machine(RuleBasedStateMachine):
    """Any requests of one sequence after another, beside an oracle: what each reads, and which memory is in use."""

    def __init__(self):
        super().__init__()
        self.region = Region()
        self.serial = 0
        self.live = set()
        self.states = SequenceStates(SPECS, "m", no_copies)
        self.wanted = {"A_IN": bytes(4), "B_IN": SPECS[1].initial}
        self.jobs = []

    def free(self, serial):
        self.live.remove(serial)

    @rule()
    def begin_again(self):
        self.states.drop()
        self.states = SequenceStates(SPECS, "m", no_copies)
        self.wanted = {"A_IN": bytes(4), "B_IN": SPECS[1].initial}

    @rule()
    def request(self):
        job = a_job()
        job.give_states(self.states)
        assert {tensor[0]: tensor[3] for tensor in job.tensors[1:]} == self.wanted
        self.jobs.append((job, {at for at in self.wanted.values() if isinstance(at, int)}))

    @rule(names=st.sets(st.sampled_from("AB")), is_late=st.booleans(), is_wrong=st.booleans())
    def respond(self, names, is_late, is_wrong):
        """A response to the oldest request, which may be of a sequence that is over."""
        if not self.jobs:
            return
        job, _ = self.jobs[0]
        self.serial += 1
        serial = self.serial
        self.live.add(serial)
        memory = StateMemory(self.region, lambda: self.free(serial))
        datatypes = {"A": "FP32" if is_wrong else "INT32", "B": "BYTES"}
        outputs = [(f"{name}_OUT", datatypes[name], [1, 1], serial, 4) for name in sorted(names)]
        try:
            job.states.update_all(outputs, memory)
        except InferenceError:
            assert is_wrong
            assert "A" in names
        else:
            if job.states is self.states:
                self.wanted.update((f"{name}_IN", serial) for name in names)
        memory.free()
        if not is_late:
            self.jobs.pop(0)[0].free()

    @rule(index=st.integers(0, 9))
    def end(self, index):
        if index < len(self.jobs):
            self.jobs.pop(index)[0].free()

    @invariant()
    def balance(self):
        """Memory is in use where a state lies in it or a request reads it, and nowhere else."""
        used = {at for at in self.wanted.values() if isinstance(at, int)}
        for _, reads in self.jobs:
            used |= reads
        assert self.live == used


TestMachine = Machine.TestCase
