# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Random ensembles, and what requests to them must come to, found without the policy."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from pyruntime.runtime.ensembles.graph import Graph
from tests.runtime.model_specs import spec_from

TENSOR = "{} {{ name: '{}' data_type: TYPE_INT8 dims: 1 {} }}"


@dataclass
class Node:
    """A step: `reads` are pairs of a tensor and whether it is optional; `absent` are outputs that it does not send.

    A decoupled one sends `responses` responses.
    """

    reads: list[tuple[str, bool]]
    writes: list[str]
    absent: set[str] = field(default_factory=set)
    responses: int | None = None

    def model(self, index):
        inputs = [
            TENSOR.format("input", f"i{n}", "optional: true" if optional else "")
            for n, (_, optional) in enumerate(self.reads)
        ]
        outputs = [TENSOR.format("output", f"o{n}", "") for n in range(len(self.writes))]
        decoupled = "model_transaction_policy { decoupled: true }" if self.responses is not None else ""
        return spec_from(f"backend: 'python' {' '.join(inputs + outputs)} {decoupled}", f"m{index}")

    def step(self, index):
        maps = [("input_map", f"i{n}", tensor) for n, (tensor, _) in enumerate(self.reads)]
        maps += [("output_map", f"o{n}", tensor) for n, tensor in enumerate(self.writes)]
        entries = " ".join("{} {{ key: '{}' value: '{}' }}".format(*entry) for entry in maps)
        return f"step {{ model_name: 'm{index}' model_version: -1 {entries} }}"


@dataclass
class Ensemble:
    """`given` are the inputs that the request has. `optional` are outputs that may be absent."""

    inputs: list[str]
    given: set[str]
    nodes: list[Node]
    outputs: list[str]
    optional: set[str]
    requested: list[str]

    def spec(self):
        tensors = [TENSOR.format("input", name, "optional: true") for name in self.inputs]
        tensors += [TENSOR.format("output", name, "") for name in self.outputs]
        steps = " ".join(node.step(index) for index, node in enumerate(self.nodes))
        names = ",".join(sorted(self.optional))
        more = f"parameters {{ key: 'OPTIONAL_OUTPUTS' value {{ string_value: '{names}' }} }}"
        return spec_from(f"platform: 'ensemble' {' '.join(tensors)} {more} ensemble_scheduling {{ {steps} }}", "e")

    def graph(self):
        return Graph(self.spec(), [node.model(index) for index, node in enumerate(self.nodes)])

    def expected(self):
        """The responses, in any order, and the runs of all steps, each with its inputs.

        A tensor is an expression of how it came about, and None if it is absent.
        """
        needed = set(self.requested)
        for node in reversed(self.nodes):
            if needed.intersection(node.writes):
                needed.update(tensor for tensor, _ in node.reads)
        wanted = [node for node in self.nodes if needed.intersection(node.writes)]
        # By origin: tensors of one iteration together.
        streams = {None: [{name: ("in", name) if name in self.given else None for name in self.inputs}]}
        origins = dict.fromkeys(self.inputs)
        runs = []
        for index, node in enumerate(self.nodes):
            if node not in wanted:
                continue
            (origin,) = {origins[tensor] for tensor, _ in node.reads}
            own = origin if node.responses is None else index
            origins |= dict.fromkeys(node.writes, own)
            made = [] if own == index else streams[origin]
            for tensors in streams[origin]:
                read = tuple(tensors[tensor] for tensor, _ in node.reads)
                lacks = any(
                    value is None and not optional for value, (_, optional) in zip(read, node.reads, strict=True)
                )
                if lacks and self.is_skippable(node, wanted):
                    if own != index:
                        tensors.update(dict.fromkeys(node.writes))
                    continue
                runs.append((index, read))
                for response in range(1 if node.responses is None else node.responses):
                    written = {
                        tensor: None if tensor in node.absent else ("out", index, tensor, read, response)
                        for tensor in node.writes
                    }
                    if own == index:
                        made.append(written)
                    else:
                        tensors.update(written)
            streams[own] = made
        (origin,) = {origins[tensor] for tensor in self.requested}
        return [{name: tensors[name] for name in self.requested} for tensors in streams[origin]], runs

    def is_skippable(self, node, wanted):
        """Whether nothing needs an output of a step."""
        for tensor in node.writes:
            if tensor in self.requested and tensor not in self.optional:
                return False
            for reader in wanted:
                if (tensor, False) in reader.reads and not self.is_skippable(reader, wanted):
                    return False
        return True


@st.composite
def ensembles(draw):
    """Any ensemble in which each step reads tensors of one origin."""
    inputs = [f"in{n}" for n in range(draw(st.integers(1, 3)))]
    by_origin = {None: list(inputs)}
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        origin = draw(st.sampled_from(sorted(by_origin, key=str)))
        read = draw(st.lists(st.sampled_from(by_origin[origin]), min_size=1, max_size=3, unique=True))
        writes = [f"t{index}{n}" for n in range(draw(st.integers(1, 2)))]
        node = Node([(tensor, draw(st.booleans())) for tensor in read], writes)
        node.absent = draw(st.sets(st.sampled_from(writes), max_size=1))
        if draw(st.integers(0, 3)) == 0:
            node.responses = draw(st.integers(0, 3))
            by_origin[index] = writes
        else:
            by_origin[origin] = by_origin[origin] + writes
        nodes.append(node)
    written = {tensor for node in nodes for tensor in node.writes}
    origin = draw(st.sampled_from([key for key, tensors in by_origin.items() if written.intersection(tensors)]))
    tensors = [tensor for tensor in by_origin[origin] if tensor in written]
    outputs = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
    return Ensemble(
        inputs,
        draw(st.sets(st.sampled_from(inputs))),
        nodes,
        outputs,
        draw(st.sets(st.sampled_from(outputs))),
        draw(st.lists(st.sampled_from(outputs), min_size=1, unique=True)),
    )
