# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The policy of ensembles, beside what requests must come to."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.ensembles.run import Drop, Run, Send, Skipped, Start

from .graphs import Ensemble, Node, ensembles


class Shell:
    """Performs commands as the real one does, and counts what is used. `choose` picks the step that answers next."""

    def __init__(self, ensemble, choose):
        self.ensemble = ensemble
        self.choose = choose
        self.plan = ensemble.graph().plan(ensemble.requested)
        self.run = Run(self.plan)
        # How many uses of each tensor are left. Tensors are expressions; equal ones are counted together.
        self.uses = Counter()
        self.runs = []
        self.sent = []
        self.is_last = False
        # Steps under way, with the number of responses that they have sent.
        self.under_way = []

    def perform(self, commands):
        for command in commands:
            assert not self.is_last, "nothing may follow the last response"
            if isinstance(command, Start):
                read = tuple(command.iteration.tensors[tensor] for _, tensor in sorted(command.step.inputs))
                self.runs.append((command.step.index, read))
                self.under_way.append([command, 0, read])
                self.use(command.iteration.tensors[name] for name in command.step.reads)
            elif isinstance(command, Send):
                assert command.iteration.number == len(self.sent)
                self.sent.append({name: command.iteration.tensors[name] for name in self.plan.outputs})
                self.use(self.sent[-1].values())
                self.is_last = command.is_last
            elif isinstance(command, Drop):
                self.uses[command.tensor] -= 1
            else:
                assert isinstance(command, Skipped)

    def use(self, tensors):
        self.uses.subtract(tensor for tensor in tensors if tensor is not None)

    def begin(self):
        tensors = {
            name: ("in", name) if name in self.ensemble.given else None
            for name in self.ensemble.inputs
            if name in self.plan.readers
        }
        self.count(tensors)
        self.perform(self.run.begin(tensors))

    def count(self, tensors):
        for name, tensor in tensors.items():
            if tensor is not None:
                self.uses[tensor] += len(self.plan.readers[name])

    def answer(self):
        """One of the steps under way sends its next response, or ends."""
        each = self.under_way[self.choose(len(self.under_way))]
        start, sent, read = each
        node = self.ensemble.nodes[start.step.index]
        if node.responses == sent:  # the end of a decoupled step, without a response
            self.under_way.remove(each)
            self.run.ended()
            return
        each[1] += 1
        if node.responses is None:
            self.under_way.remove(each)
        tensors = {
            tensor: None if tensor in node.absent else ("out", start.step.index, tensor, read, sent)
            for tensor in node.writes
            if tensor in self.plan.readers
        }
        self.count(tensors)
        commands = self.run.responded(start.step, start.iteration, tensors, is_last=node.responses is None)
        self.perform(commands)

    def leave(self):
        """All is over: nothing is left."""
        assert self.run.under_way == 0
        self.perform_rest()
        assert not any(self.uses.values()), "each use takes place or is dropped, and none does twice"

    def perform_rest(self):
        self.is_last = False
        self.perform(self.run.stop())


def counted(items):
    return Counter(map(repr, items))


@given(ensembles(), st.data())
def test_any_ensemble(ensemble, data):
    """In whatever order steps answer, each runs as often as it must, on the right tensors, and nothing is left."""
    shell = Shell(ensemble, lambda count: data.draw(st.integers(0, count - 1)))
    shell.begin()
    while shell.under_way:
        shell.answer()
    sent, runs = ensemble.expected()
    assert counted(shell.runs) == counted(runs)
    assert counted(shell.sent) == counted(sent)
    origins = [node for node in ensemble.nodes if node.responses is not None]
    if len(origins) <= 1:  # else the responses of several runs mix
        assert shell.sent == sent
    shell.leave()


@given(ensembles(), st.integers(0, 5), st.data())
def test_stopped_at_any_time(ensemble, answers, data):
    """After the stop no step starts, nothing is sent, and what steps still send is dropped."""
    shell = Shell(ensemble, lambda count: data.draw(st.integers(0, count - 1)))
    shell.begin()
    for _ in range(answers):
        if shell.under_way:
            shell.answer()
    shell.is_last = False
    shell.perform(shell.run.stop())
    started, sent = len(shell.runs), len(shell.sent)
    while shell.under_way:
        shell.answer()
    assert (len(shell.runs), len(shell.sent)) == (started, sent)
    shell.leave()


def run_of(*nodes, outputs=("out",), inputs=("in",), optional=()):
    ensemble = Ensemble(list(inputs), set(inputs), list(nodes), list(outputs), set(optional), list(outputs))
    return Shell(ensemble, lambda count: 0)


def test_last_response_of_a_stream():
    """The last response says so only if no step is under way; otherwise the end comes without a response."""
    shell = run_of(Node([("in", False)], ["a"], responses=1), Node([("a", False)], ["out"]))
    shell.begin()
    shell.answer()
    shell.choose = lambda count: 1
    shell.answer()
    assert (len(shell.sent), shell.is_last) == (1, False)
    shell.choose = lambda count: 0
    shell.answer()
    assert (len(shell.sent), shell.run.under_way) == (1, 0)


def test_responses_are_sent_in_order():
    """A later iteration that is complete first waits for the earlier one."""
    shell = run_of(Node([("in", False)], ["a"], responses=2), Node([("a", False)], ["out"]))
    shell.begin()
    shell.answer()
    shell.answer()
    shell.choose = lambda count: count - 1
    shell.answer()
    assert shell.sent == []
    shell.answer()
    assert [outputs["out"][-1] for outputs in shell.sent] == [0, 0]
    assert [outputs["out"][3][0][-1] for outputs in shell.sent] == [0, 1]


def test_absent_inputs_of_a_step_that_is_needed():
    """The step runs without them: its model refuses the request, as in Triton."""
    shell = run_of(Node([("in", False)], ["a"], {"a"}), Node([("a", False)], ["out"]))
    shell.begin()
    shell.answer()
    assert shell.runs[-1] == (1, (None,))


def test_steps_are_skipped():
    """Steps whose inputs are absent are skipped, and the steps behind them, if nobody needs the outputs."""
    nodes = (
        Node([("in", False)], ["yes", "no"], {"no"}),
        Node([("yes", False)], ["one"]),
        Node([("no", False)], ["b"]),
        Node([("b", False)], ["other"]),
    )
    shell = run_of(*nodes, outputs=("one", "other"), optional=("one", "other"))
    shell.begin()
    while shell.under_way:
        shell.answer()
    assert [index for index, _ in shell.runs] == [0, 1]
    assert (shell.sent[0]["one"] is not None, shell.sent[0]["other"]) == (True, None)
    shell.leave()


def test_repr():
    """What is under way can be read."""
    shell = run_of(Node([("in", False)], ["out"]))
    shell.begin()
    assert repr(shell.run) == "<Run [1 tensors, 1 steps under way, 0 responses]>"
    shell.answer()
