# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the log says about outputs that are not as the configuration says."""

import pytest

from pyruntime.runtime.instances.output_findings import FINDINGS_MAX, OutputFindings
from pyruntime.runtime.requests.types import OutputTensor

from ..model_specs import spec_from

CONFIG = (
    "name: 'm' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: [ 2, -1 ] } "
)
FP64 = "datatype FP64, and the configuration says FP32: numpy makes float64 unless it is told otherwise"


@pytest.fixture
def findings():
    return OutputFindings(spec_from(CONFIG), "m/1/model.py")


def output(datatype="FP32", shape=(1, 2, 3), name="OUT"):
    return OutputTensor(name, datatype, [*shape], b"")


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (output("INT64"), "output 'OUT' of model 'm' has datatype INT64, and the configuration says FP32"),
        (output("FP64"), f"output 'OUT' of model 'm' has {FP64}, so convert the array with .astype(numpy.float32)"),
        (
            output(shape=(1, 3, 3)),
            "output 'OUT' of model 'm' has shape [1, 3, 3], and the configuration says [-1, 2, -1]",
        ),
        (output(shape=(2, 3)), "output 'OUT' of model 'm' has shape [2, 3], and the configuration says [-1, 2, -1]"),
        (output(shape=()), "output 'OUT' of model 'm' has shape [], and the configuration says [-1, 2, -1]"),
    ],
)
def test_a_wrong_output_is_said_once_with_the_file(findings, caplog, wrong, found):
    for _ in range(2):
        findings.check([wrong])
    assert [record.getMessage() for record in caplog.records] == [f"{found} (m/1/model.py; said once)"]
    assert caplog.records[0].levelname == "WARNING"


def test_datatype_and_shape_of_one_output_are_two_mistakes(findings, caplog):
    findings.check([output("INT8", (5,))])
    findings.check([output("INT8", (6,))])
    assert len(caplog.records) == 2


def test_outputs_as_configured_and_states_are_not_said(findings, caplog):
    findings.check([output(), output(shape=(7, 2, 0)), output("INT8", (9,), name="STATE")])
    assert not caplog.records


def test_a_model_without_outputs_is_told_that_it_declares_none(caplog):
    OutputFindings(spec_from("name: 'm'"), "m/1/model.py").dropped("OUT")
    assert "'OUT' of model 'm' is dropped, because the configuration declares no outputs" in caplog.text


def test_a_model_that_makes_up_names_fills_no_log(findings, caplog):
    for number in range(FINDINGS_MAX + 5):
        findings.dropped(f"{number:04}" * 1000)
    assert len(caplog.records) == FINDINGS_MAX
    assert max(len(record.getMessage()) for record in caplog.records) < 400
