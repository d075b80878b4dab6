# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which calls can never be served: by example, and against a model that tries every order in which batches may end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyruntime.runtime.execution.deadlock import explain_deadlock


@dataclass(eq=False)
class Instance:
    """`calls` are those that its batch waits for: who could serve each, and the model's name."""

    model_name: str
    calls: list = field(default_factory=list)

    def waiting_calls(self):
        return self.calls

    def waits_for(self, *others):
        """A batch of it waits for a call that any of these could serve."""
        self.calls.append((list(others), others[0].model_name if others else "?"))
        return self


def explain(caller, *servers):
    """As the server does it: the call is on the caller's list already."""
    caller.waits_for(*servers)
    return explain_deadlock(caller.model_name, servers[0].model_name if servers else "?", servers)


class TestDeadlock:
    def test_of_one_with_itself(self):
        """A model with one instance that calls itself."""
        a = Instance("a")
        assert explain(a, a) == "a -> a"

    def test_of_two(self):
        """Two that call each other."""
        a, b = Instance("a"), Instance("b")
        b.waits_for(a)
        assert explain(a, b) == "a -> b -> a"

    def test_of_three(self):
        """Three instances that wait for each other in a circle are a deadlock."""
        a, b, c = Instance("a"), Instance("b"), Instance("c")
        b.waits_for(c)
        c.waits_for(a)
        assert explain(a, b) == "a -> b -> c -> a"

    def test_of_all_instances(self):
        """When every instance of a model waits, one way or another."""
        a, b, c = Instance("a"), Instance("b"), Instance("b")
        b.waits_for(a)
        c.waits_for(a)
        assert explain(a, b, c) == "a -> b -> a"

    def test_that_the_caller_is_no_part_of(self):
        """Waiting for instances that wait for each other is a deadlock, too."""
        a, b, c = Instance("a"), Instance("b"), Instance("c")
        b.waits_for(c)
        c.waits_for(b)
        assert explain(a, b) == "a -> b -> c -> b"

    def test_of_one_call_among_others(self):
        """One call that is never answered is enough."""
        a, b, free = Instance("a"), Instance("b"), Instance("free")
        b.waits_for(free)
        b.waits_for(a)
        assert explain(a, b) == "a -> b -> a"


class TestHope:
    def test_of_one_that_waits_for_nothing(self):
        """An instance that waits for nothing has no part in a deadlock."""
        assert explain(Instance("a"), Instance("b")) == ""

    def test_of_one_that_waits_for_another(self):
        """An instance that waits for a running one has no part in a deadlock."""
        a, b, c = Instance("a"), Instance("b"), Instance("c")
        b.waits_for(c)
        assert explain(a, b) == ""

    def test_of_a_second_instance(self):
        """One instance that can go on is enough."""
        a, b, c = Instance("a"), Instance("b"), Instance("b")
        b.waits_for(a)
        assert explain(a, b, c) == ""

    def test_in_the_middle(self):
        """Another free instance within the circle resolves it."""
        a, b, c, other_c = Instance("a"), Instance("b"), Instance("c"), Instance("c")
        b.waits_for(c, other_c)
        c.waits_for(a)
        assert explain(a, b) == ""

    def test_without_instances(self):
        """While a model has no instance at all, one may still come."""
        a, b = Instance("a"), Instance("b")
        assert explain_deadlock(a, "b", []) == ""
        b.waits_for()
        assert explain(a, b) == ""


def can_end(caller, servers):
    """Whether the batches of all instances may end one after the other until one of `servers` is free, by trying."""
    everybody = {id(caller): caller}
    left = [caller, *servers]
    while left:
        instance = left.pop()
        everybody[id(instance)] = instance
        left += [each for others, _ in instance.calls for each in others if id(each) not in everybody]
    # A batch that waits for a call ends when an instance that could serve the call has ended before.
    ended = set()
    for _ in everybody:
        for key, instance in everybody.items():
            if all(not others or any(id(each) in ended for each in others) for others, _ in instance.calls):
                ended.add(key)
    return not servers or any(id(each) in ended for each in servers)


GRAPHS = st.integers(1, 6).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 2), min_size=count, max_size=count),
        st.lists(
            st.tuples(st.integers(0, count - 1), st.lists(st.integers(0, count - 1), max_size=3)), max_size=8
        ),
        st.integers(0, count - 1),
        st.lists(st.integers(0, count - 1), min_size=1, max_size=3),
    )
)  # fmt: skip


class TestAgainstAModel:
    @settings(max_examples=5 * settings.default.max_examples)
    @given(GRAPHS)
    def test_any_graph(self, graph):
        """A call is refused if and only if it would wait for ever; then the path ends where it has been before."""
        models, edges, caller, servers = graph
        instances = [Instance("abc"[model]) for model in models]
        for waiting, others in edges:
            instances[waiting].waits_for(*[instances[other] for other in others])
        caller, servers = instances[caller], [instances[server] for server in servers]
        cycle = explain(caller, *servers)
        assert (cycle == "") == can_end(caller, servers)
        if cycle:
            path = cycle.split(" -> ")
            assert path[:2] == [caller.model_name, servers[0].model_name]
            assert path[-1] in path[:-1]
            assert len(set(path[:-1])) == len(path) - 1

    @pytest.mark.parametrize("length", [1, 2, 50])
    def test_long_circles(self, length):
        """However long a circle is, it is found."""
        instances = [Instance(f"m{number}") for number in range(length)]
        for number in range(1, length):
            instances[number].waits_for(instances[(number + 1) % length])
        cycle = explain(instances[0], instances[1 % length])
        assert cycle == " -> ".join([*[f"m{number}" for number in range(length)], "m0"])
