# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a request to load a model."""

import orjson
import pytest

from pyruntime.runtime.config.parse import CONFIG_BYTES_MAX, parse_model_config
from pyruntime.runtime.config.render import render
from pyruntime.runtime.repository.override import ENTRIES_MAX, OVERRIDE_FILES_MAX, check_files, parse_override
from pyruntime.utils.errors import Code, InferenceError


def test_what_the_config_endpoint_says():
    """The rendering of a configuration is the same configuration again."""
    text = (
        "name: 'm' backend: 'python' max_batch_size: 8 version_policy { latest { num_versions: 2 } } "
        "input { name: 'IN' data_type: TYPE_FP32 dims: [ -1, 4 ] } instance_group { count: 2 kind: KIND_CPU } "
        "dynamic_batching { max_queue_delay_microseconds: 9007199254740993 } "
        "parameters { key: 'k' value { string_value: 'v' } }"
    )
    config = parse_model_config(text, "config.pbtxt")
    assert parse_override(render(config).decode()) == config


def test_names_of_either_kind():
    """Fields go by their names in the schema or by those of protobuf's JSON; 64-bit integers may be texts."""
    config = parse_override('{"maxBatchSize": 2, "model_transaction_policy": {"decoupled": true}, "input": '
                            '[{"name": "A", "data_type": "TYPE_INT8", "dims": ["-1", 2]}]}')  # fmt: skip
    assert config.max_batch_size == 2
    assert config.model_transaction_policy.decoupled
    assert list(config.input[0].dims) == [-1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "{max_batch_size: 4, input: [{name: 'A', dims: [1, 2,], data_type: 'TYPE_INT8',},],}",
        '{maxBatchSize: "4", \'input\': [{"name": "A", "dims": ["1", 2], "data_type": 6}]}',
        '{max_batch_size : 4,\n "input": [{name: "A", dims: [1, 2], dataType: "type_int8"}] , }',
    ],
)
def test_what_is_read_leniently(text):
    """Keys without quotes, single quotes, commas behind the last element, enums in small letters or as numbers."""
    config = parse_override(text)
    (tensor,) = config.input
    assert (config.max_batch_size, tensor.name, list(tensor.dims)) == (4, "A", [1, 2])
    assert (
        tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name == "TYPE_INT8"
    )


def test_parameters_keep_their_case():
    """Only the names of enum values are put in capitals, not texts and not keys of maps."""
    config = parse_override("{parameters: {type_int8: {string_value: 'type_int8'}}}")
    assert config.parameters["type_int8"].string_value == "type_int8"


@pytest.mark.parametrize(
    "text",
    [
        "{'name': 'm", "{name: m}", "{,}", "{name: 'm' 'n'}", "{name:: 'm'}", "{data type: 'm'}",
        "{", "[]", "1", "null", '"x"', "[1]", '{"no_such_field": 1}', '{"max_batch_size": "many"}', '{"input": {}}',
        '{"input": [1]}', '{"input": 3}', '{"parameters": []}', '{"parameters": {"k": 1}}', '{"max_batch_size": 1e99}',
        '{"max_batch_size": NaN}', '{"name": 1}', '{"name": "a", "name": "b"}',
        '{"name": "\\ud800"}', '{"instance_group":' * 30_000,
    ],
)  # fmt: skip
def test_what_is_no_configuration(text):
    """Anything else is refused in Triton's words, at a bearable length."""
    with pytest.raises(InferenceError, match=r"^Invalid config override: .") as caught:
        parse_override(text)
    assert caught.value.code is Code.INVALID_ARG
    assert len(caught.value.message) < 1000


def test_a_configuration_that_is_too_long():
    """A configuration has the same limit wherever it comes from."""
    text = orjson.dumps({"name": "m" * CONFIG_BYTES_MAX}).decode()
    with pytest.raises(InferenceError, match=f"it has {len(text)} characters, and may have {CONFIG_BYTES_MAX}"):
        parse_override(text)


@pytest.mark.parametrize("field", ["input", "instance_group"])
def test_very_many_entries(field):
    """They are counted before anything is made of them."""
    assert len(getattr(parse_override(orjson.dumps({field: [{}] * ENTRIES_MAX}).decode()), field)) == ENTRIES_MAX
    text = orjson.dumps({field: [{}] * (ENTRIES_MAX + 1)}).decode()
    with pytest.raises(InferenceError, match=f"'{field}' has {ENTRIES_MAX + 1} entries, and may have {ENTRIES_MAX}"):
        parse_override(text)


def test_very_many_parameters():
    """Those of an object count as those of a list."""
    entries = {str(number): {} for number in range(ENTRIES_MAX)}
    assert len(parse_override(orjson.dumps({"parameters": entries}).decode()).parameters) == ENTRIES_MAX
    text = orjson.dumps({"parameters": entries | {"more": {}}}).decode()
    with pytest.raises(InferenceError, match=f"'parameters' has {ENTRIES_MAX + 1} entries, and may have {ENTRIES_MAX}"):
        parse_override(text)


def test_files():
    """Files are known by their paths in the model's folder, with a slash before them or without."""
    files = {"file:1/model.py": b"a", "file:1/sub dir/é.bin": b"", "file:labels.txt": b"b"}
    assert check_files("m", "{}", files) == {"1/model.py": b"a", "1/sub dir/é.bin": b"", "labels.txt": b"b"}
    files = {"file:/1/model.py": b"a", "file://1/./sub//x": b"b", "file:2/../labels.txt": b"c", "file:/etc/passwd": b""}
    assert check_files("m", "{}", files) == {
        "1/model.py": b"a", "1/sub/x": b"b", "labels.txt": b"c", "etc/passwd": b"",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "normalized"),
    [
        ("", "."), ("/", "."), ("..", ".."), ("/..", ".."), ("1/..", "."), ("../m/1/model.py", "../m/1/model.py"),
        ("/1/../../x", "../x"),
    ],
)  # fmt: skip
def test_files_that_lie_elsewhere(path, normalized):
    """A path that leads out of the folder is refused in Triton's words."""
    with pytest.raises(InferenceError) as caught:
        check_files("m", "{}", {"file:1/model.py": b"", f"file:{path}": b""})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"failed to load 'm', Invalid file parameter 'file:{path}' with normalized path '{normalized}' must stay "
        "within model directory."
    )


@pytest.mark.parametrize("path", ["a\\b", "1/mo\x00del.py", "1/\n", "\ud800"])
def test_files_that_no_file_system_has(path):
    """The message is safe to print."""
    with pytest.raises(
        InferenceError, match=r"^failed to load 'm', Invalid file parameter .* invalid characters$"
    ) as it:
        check_files("m", "{}", {f"file:{path}": b""})
    assert it.value.message.isprintable()


@pytest.mark.parametrize("paths", [("1", "1/model.py"), ("1/a/b/c", "/1/a")])
def test_a_file_where_a_folder_is_needed(paths):
    """One path cannot be both."""
    with pytest.raises(InferenceError, match=r"^failed to load 'm', Invalid file parameter 'file:1/.*as a file$"):
        check_files("m", "{}", {f"file:{path}": b"" for path in paths})


def test_files_without_prefix():
    """The name of a file says that it is one."""
    with pytest.raises(InferenceError, match=r"^failed to load 'm', override file '1/a' must be named 'file:<path>'$"):
        check_files("m", "{}", {"1/a": b""})


def test_files_without_configuration():
    """Files make a whole model, to which a configuration belongs."""
    with pytest.raises(
        InferenceError, match=r"^failed to load 'm', Load parameter 'config' must be specified for model"
    ):
        check_files("m", "", {"file:1/model.py": b""})


def test_too_many_files():
    """A model that comes with a request is a small one."""
    files = {f"file:{i}": b"" for i in range(OVERRIDE_FILES_MAX + 1)}
    with pytest.raises(InferenceError, match=f"{OVERRIDE_FILES_MAX + 1} override files are more than"):
        check_files("m", "{}", files)
    del files["file:0"]
    assert len(check_files("m", "{}", files)) == OVERRIDE_FILES_MAX
