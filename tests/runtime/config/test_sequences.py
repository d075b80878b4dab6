# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`sequence_batching`: refusals with Triton's messages, and the resulting spec."""

import pytest

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.sequences import STATE_BYTES_MAX
from pyruntime.runtime.config.spec import ControlSpec, QueuePolicySpec
from pyruntime.runtime.config.validate import validate, validate_instances
from pyruntime.utils.errors import LoadError

CONFIG = "name: 'm' backend: 'python' input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
EITHER = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"


def config_of(batching, max_batch_size=4, more=""):
    text = f"{CONFIG} max_batch_size: {max_batch_size} sequence_batching {{ {batching} }} {more}"
    return normalize(parse_model_config(text, "config.pbtxt"), directory_name="m", files=["model.py"], gpus=())


def spec_of(batching, max_batch_size=4, more=""):
    config = config_of(batching, max_batch_size, more)
    validate_instances(config)
    validate(config, ())
    return model_spec(config)


def control(kind, values="int32_false_true: [ 0, 1 ]", name="C"):
    return f"control_input {{ name: '{name}' control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }} "


def state(more="", dims="dims: 2", data_type="data_type: TYPE_INT32", names="input_name: 'I' output_name: 'O'"):
    return f"state {{ {names} {data_type} {dims} {more} }} "


def initial(more="zero_data: true", dims="dims: 2", data_type="data_type: TYPE_INT32", name="name: 'i'"):
    return f"initial_state {{ {name} {data_type} {dims} {more} }}"


@pytest.mark.parametrize(
    ("batching", "reason"),
    [
        (control("START", name=""), "sequence batching control tensor must have a name for m"),
        (
            control("START") + control("END"),
            "sequence batching control tensor 'C' is specified for multiple control kinds for m",
        ),
        (
            "control_input { name: 'C' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } "
            "control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }",
            "sequence batching control tensor 'C' is specified for multiple control kinds for m",
        ),
        (
            control("START") + control("START", name="D"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            "control_input { name: 'C' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } "
            "control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }",
            "sequence batching specifies multiple CONTROL_SEQUENCE_READY tensors for m",
        ),
        (
            "control_input { name: 'C' control { kind: 9 int32_false_true: [ 0, 1 ] } }",
            "sequence batching control tensor 'C' has an unknown kind, 9, for m",
        ),
        (control("START", ""), f"sequence batching must specify either {EITHER} for CONTROL_SEQUENCE_START for m"),
        (
            control("READY", "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for CONTROL_SEQUENCE_READY for m",
        ),
        *(
            (
                control("END", f"{field}: [ {values} ]"),
                f"sequence batching control '{field}' must have exactly 2 entries for CONTROL_SEQUENCE_END for m",
            )
            for field, values in (
                ("int32_false_true", "0, 1, 2"),
                ("fp32_false_true", "0"),
                ("bool_false_true", "false"),
            )
        ),
        *(
            (
                control("CORRID", data_type),
                "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
                "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            )
            for data_type in ("", "data_type: TYPE_FP32")
        ),
        (
            control("CORRID", "data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]"),
            f"sequence batching must not specify either {EITHER} for CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            control("CORRID", "data_type: TYPE_UINT64") + control("CORRID", "data_type: TYPE_UINT64", "D"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
        ),
        (
            "oldest { preferred_batch_size: [ 2, 0 ] }",
            "sequence batching preferred batch size must be positive for m",
        ),
        *(
            (
                f"direct {{ minimum_slot_utilization: {value} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            )
            for value in ("-0.5", "1.5", "nan")
        ),
        (state(names="output_name: 'O'"), "a state of m must specify 'input_name' and 'output_name'"),
        (state(names="input_name: 'I'"), "a state of m must specify 'input_name' and 'output_name'"),
        (control("START", name="I") + state(), "the state input 'I' of m is an input already"),
        (state() + state(names="input_name: 'I' output_name: 'P'"), "the state input 'I' of m is an input already"),
        (
            state() + state(names="input_name: 'J' output_name: 'O'"),
            "m has more than one state output 'O'",
        ),
        (state(data_type=""), "the state input 'I' of m must specify 'data_type'"),
        (
            state(dims="dims: [ 2, 0 ]"),
            "the state input 'I' of m dimension must be integer >= 1, or -1 to indicate a variable-size dimension, "
            "got 0",
        ),
        (
            state(initial() + initial()),
            "initial_state field for state input 'I' must contain exactly one or zero element. Found '2' elements.",
        ),
        (state(initial(name="")), "Field 'name' must be set when using initial_state for state input 'I'."),
        (
            state(initial(data_type="data_type: TYPE_FP32")),
            "The data type used for 'initial_state' field of state 'I' does not match the state data type.",
        ),
        (
            state(initial(dims="dims: [ 1, 2 ]")),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'I'. "
            "2 != 1",
        ),
        (
            state(initial(dims="dims: 3")),
            "'initial_state' dim for input name 'I' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            state(initial(dims="dims: -1"), dims="dims: -1"),
            "'initial_state' field for state input name 'I' contains variable dimensions.",
        ),
        (state(initial("")), "initial_state setting expects state'I' to have state_data set"),
        (
            state(dims=f"dims: {STATE_BYTES_MAX}"),
            f"the state input 'I' has {4 * STATE_BYTES_MAX} bytes, and at most {STATE_BYTES_MAX} are allowed",
        ),
    ],
)
def test_refused(batching, reason):
    """One sentence for each rule. These are refused before a stub is started, as they depend on nothing else."""
    with pytest.raises(LoadError) as caught:
        validate_instances(config_of(batching))
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("batching", "reason"),
    [
        (
            "oldest { preferred_batch_size: 5 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (control("START", name="IN"), "sequence batching control tensor 'IN' is an input of m already"),
        (state(names="input_name: 'IN' output_name: 'O'"), "the state input 'IN' of m is an input already"),
    ],
)
def test_refused_once_complete(batching, reason):
    """The model itself may say what these depend on."""
    config = config_of(batching)
    validate_instances(config)
    with pytest.raises(LoadError) as caught:
        validate(config, ())
    assert str(caught.value) == reason


def test_defaults():
    """Without a strategy it is the direct one, and there is a slot for each row."""
    spec = spec_of("")
    batching = spec.sequence_batching
    assert (batching.oldest, batching.slots, batching.max_idle_us) == (False, 4, 1_000_000)
    assert (batching.max_queue_delay_us, batching.minimum_slot_utilization) == (0, 0.0)
    assert (batching.controls, batching.states) == ((), ())
    assert spec.is_batched


def test_direct():
    """The settings of the direct strategy."""
    direct = "direct { max_queue_delay_microseconds: 7 minimum_slot_utilization: 0.5 }"
    batching = spec_of(f"max_sequence_idle_microseconds: 9 {direct}").sequence_batching
    assert (batching.max_idle_us, batching.max_queue_delay_us, batching.minimum_slot_utilization) == (9, 7, 0.5)


def test_oldest():
    """The settings of the oldest strategy; it has as many slots as candidate sequences."""
    oldest = "oldest { max_candidate_sequences: 9 preferred_batch_size: [ 2, 3 ] max_queue_delay_microseconds: 7 }"
    batching = spec_of(oldest).sequence_batching
    assert (batching.oldest, batching.slots) == (True, 9)
    assert (batching.preferred_batch_sizes, batching.max_queue_delay_us) == ((2, 3), 7)


@pytest.mark.parametrize("oldest", ["oldest {}", "oldest { max_candidate_sequences: -1 }"])
def test_oldest_without_a_number(oldest):
    """Without a number of candidates there is one for each row."""
    assert spec_of(oldest).sequence_batching.slots == 4


def test_without_batching():
    """A model that does not batch executes one sequence at a time."""
    spec = spec_of("", max_batch_size=0)
    assert spec.sequence_batching.slots == 1
    assert not spec.is_batched


def test_without_controls():
    """Control inputs and states are optional, also where a request may be executed again."""
    found = spec_of(
        "iterative_sequence: true max_sequence_idle_microseconds: 5 "
        "oldest { max_candidate_sequences: 7 preferred_batch_size: 2 preserve_ordering: true }"
    ).sequence_batching
    assert (found.oldest, found.slots, found.max_idle_us, found.preferred_batch_sizes) == (True, 7, 5, (2,))
    assert found.preserve_ordering


def test_controls():
    """Each control has its two contents, in its datatype."""
    batching = spec_of(
        control("START", "int32_false_true: [ -1, 1 ]", "S")
        + control("READY", "fp32_false_true: [ 0, 0.5 ]", "R")
        + control("END", "bool_false_true: [ true, false ]", "E")
        + control("CORRID", "data_type: TYPE_STRING", "I")
    ).sequence_batching
    assert batching.controls == (
        ControlSpec("S", "START", "INT32", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00"),
        ControlSpec("R", "READY", "FP32", b"\x00\x00\x00\x00", b"\x00\x00\x00\x3f"),
        ControlSpec("E", "END", "BOOL", b"\x01", b"\x00"),
        ControlSpec("I", "CORRID", "BYTES"),
    )


@pytest.mark.parametrize(
    ("text", "max_batch_size", "shape", "size"),
    [
        (state(), 4, (1, 2), 8),
        (state(), 0, (2,), 8),
        (state(dims="dims: [ -1, 3 ]"), 0, (1, 3), 12),
        (state(initial(dims="dims: [ 5, 3 ]"), dims="dims: [ -1, 3 ]"), 0, (5, 3), 60),
        (state(initial(dims="dims: 0"), dims="dims: -1"), 4, (1, 0), 0),
        (state(data_type="data_type: TYPE_STRING"), 4, (1, 2), 8),
        (state(dims=""), 4, (1,), 4),
    ],
)
def test_states(text, max_batch_size, shape, size):
    """A state begins with zeros, in the shape of its initial state, or with ones for variable dimensions."""
    (found,) = spec_of(text, max_batch_size).sequence_batching.states
    assert (found.input_name, found.output_name) == ("I", "O")
    assert (found.shape, found.initial, found.data_file) == (shape, bytes(size), "")


def test_data_file():
    """The file is read when the model is loaded, and not here."""
    (found,) = spec_of(state(initial("data_file: 'f'"))).sequence_batching.states
    assert (found.data_file, found.initial) == ("f", bytes(8))


def backlog(value, limit="MAX_SIZE"):
    return f"parameters {{ key: 'SEQUENCE_BACKLOG_{limit}' value {{ string_value: '{value}' }} }} "


def test_backlog():
    """Parameters of the model limit its backlog; without them there is no limit."""
    limited = spec_of("", more=backlog("7") + backlog("500000", "TIMEOUT_MICROSECONDS")).sequence_batching
    assert limited.backlog == QueuePolicySpec(max_queue_size=7, default_timeout_us=500_000)
    assert spec_of("").sequence_batching.backlog == spec_of("", more=backlog("0")).sequence_batching.backlog
    assert spec_of("").sequence_batching.backlog == QueuePolicySpec()


@pytest.mark.parametrize("value", ["", "-1", "1.5", "many", "1" * 19])
def test_backlog_without_a_number(value):
    """A limit that is no number is refused."""
    with pytest.raises(LoadError) as caught:
        spec_of("", more=backlog(value))
    assert str(caught.value) == (
        "the parameter SEQUENCE_BACKLOG_MAX_SIZE of model 'm' must be a number in at most 18 digits, 0 for no limit, "
        f"and is '{value}'"
    )
