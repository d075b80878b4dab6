# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code reads outputs of plain responses, and writes answers over HTTP, as the reference does, or not at all.

The examples are near the border of what is accepted.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.http.binary_answer import binary_answer, reference_answer
from pyruntime.runtime.frontends.http.response_head import CLOSE, KEEP_ALIVE
from pyruntime.runtime.instances.codec import ResponseReader
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.native._codecs import OutputReader, write_answer
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address

from ..model_specs import BARE_SPEC

SPEC = replace(BARE_SPEC, outputs={name: TensorSpec(name, "FP32", (2,), (-1, 2)) for name in ("Y", "Z")})

# --- outputs

REGION = memoryview(bytes(range(256)))
LIMIT = 200


class Region:
    """Stands for the region of a stub."""

    number = 9
    limit = LIMIT
    view = REGION


class Findings(OutputFindings):
    """Notes what is wrong with outputs."""

    def __init__(self, spec):
        super().__init__(spec, "model.py")
        self.found = []

    def _say(self, name, aspect, sentence):
        self.found.append(sentence)


INTEGERS = st.sampled_from(
    [0, 1, 8, LIMIT - 8, LIMIT, LIMIT + 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64, True, 1.0, "1"]
)


@st.composite
def output_refs(draw):
    """References to outputs as a stub sends them, or nearly so."""
    refs = []
    for name in draw(st.lists(st.sampled_from(["Y", "Z", "Z", "X", "\ud800", b"Y"]), max_size=3)):
        ref = [name, "FP32", [draw(st.integers(-2, 3)), 2], draw(st.integers(0, LIMIT)), draw(st.integers(0, 9)), 0, 0]
        change = draw(st.integers(0, 30))
        if change in (0, 3, 4, 5, 6):
            ref[change] = draw(INTEGERS)
        elif change == 1:
            ref[1] = draw(st.sampled_from(["INT32", "NONE", "fp32", 1]))
        elif change == 2:
            ref[2] = draw(st.sampled_from([[], [1], [1, 2, 3], [1, True], [1, 2.0], [1, 2**63], (1, 2), "ab", None]))
        elif change == 7:
            ref = draw(st.sampled_from([ref[:6], [*ref, 0], tuple(ref), None]))
        refs.append(ref)
    return refs


@given(output_refs())
@example([["Y", "FP32", [1, 2], 0, 8, 0, 0], ["Z", "FP32", [3, 2], LIMIT, 0, 0, 0]])
def test_outputs_are_read_as_the_reference_does(refs):
    """Native code accepts nothing that the reference refuses, or says something about, and reads no other outputs."""
    outputs = [(name, each.datatype, each.shape) for name, each in SPEC.outputs.items()]
    plain = OutputReader(outputs, REGION, LIMIT, address(Region.number, 0), OutputTensor).read(refs)
    event(f"is plain: {plain is not None}")
    if plain is not None:
        findings = Findings(SPEC)
        assert plain == ResponseReader(SPEC, 1, Region(), print).outputs(refs)
        findings.check(plain[0])
        assert findings.found == []


@pytest.mark.parametrize("refs", [(), None, "", [None]])
def test_what_are_no_references_to_outputs(refs):
    assert OutputReader([], REGION, LIMIT, 0, OutputTensor).read(refs) is None


class TestOutputReader:
    @pytest.mark.parametrize("outputs", [[("Y", "FP32", ())] * 65, [("Y", "FP32", (1,) * 33)]])
    def test_too_many(self, outputs):
        with pytest.raises(ValueError, match="items, expected at most"):
            OutputReader(outputs, REGION, LIMIT, 0, OutputTensor)

    @pytest.mark.parametrize("outputs", [None, [None], [("Y",)], [(1, "FP32", ())], [("Y", "FP32", ("1",))]])
    def test_other_types(self, outputs):
        with pytest.raises(TypeError):
            OutputReader(outputs, REGION, LIMIT, 0, OutputTensor)


# --- answers

ANSWER_TEXTS = st.sampled_from(["", "a", "name", "a b", '"', "\\", "\x00", "\x7f", "é", "\ud800", "a" * 2000])
ANSWER_DIMS = st.lists(st.sampled_from([0, 1, 7, -1, 2**63 - 1, -(2**63), 2**63, 2**70]), max_size=3)
ANSWER_OUTPUTS = st.lists(
    st.builds(
        lambda name, datatype, shape, size, is_view: OutputTensor(
            name, datatype, shape, memoryview(bytes(size)) if is_view else bytes(size)
        ),
        st.sampled_from(["Y", "Z"]) | ANSWER_TEXTS,
        st.sampled_from(["FP32", "BYTES"]),
        ANSWER_DIMS,
        st.integers(0, 100),
        st.booleans(),
    ),
    max_size=3,
)


@given(
    st.sampled_from(["", "1"]) | ANSWER_TEXTS,
    st.sampled_from(["m"]) | ANSWER_TEXTS,
    st.sampled_from([1, 2**63 - 1]),
    ANSWER_OUTPUTS,
    st.sampled_from([{}, {"a": 1, "b": '"outputs":'}]),
    st.sampled_from([b"", CLOSE, KEEP_ALIVE]),
    st.sampled_from([0, 150, 10_000]),
)
def test_an_answer_is_written_as_the_reference_does(id, model, version, outputs, parameters, lines, joined_max):
    """Native code writes the same bytes, in the same parts, or none."""
    response = InferResponse(model, version, id, outputs, parameters)
    more = json.dumps(parameters, separators=(",", ":")).encode() if parameters else b""
    written = write_answer(id, model, version, outputs, more, lines, joined_max)
    event(f"is plain: {written is not None}")
    if written is not None:
        assert written == reference_answer(response, lines, joined_max)
        assert all(type(part) is bytes for part in written[0][:1])


def test_an_answer_refers_to_contents_that_are_not_joined():
    contents = memoryview(bytes(8))
    response = InferResponse("m", 1, "", [OutputTensor("Y", "FP32", [2], contents)])
    whole, length, lead = binary_answer(response, b"", 1000)
    parts, _, _ = binary_answer(response, b"", length - 1)
    assert parts[1] is contents
    assert b"".join(parts) == whole[0]
    assert (len(whole), length) == (1, lead + 8)


@pytest.mark.parametrize("outputs", [None, (), [None], [OutputTensor("Y", "FP32", None, b"")]])
def test_what_is_no_answer(outputs):
    with pytest.raises((TypeError, AttributeError)):
        write_answer("", "m", 1, outputs, b"", b"", 0)
