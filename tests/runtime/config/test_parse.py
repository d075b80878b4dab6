# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt as text: everything in the schema can be written, and nothing else raises but LoadError."""

import contextlib

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.parse import COMPLAINT_CHARACTERS_MAX, CONFIG_BYTES_MAX, parse_model_config
from pyruntime.runtime.config.schema import CONFIG_DESCRIPTOR
from pyruntime.utils.errors import LoadError


def _literals(field):
    """A value of the field's type, as text and as in a message."""
    if field.enum_type is not None:
        value = field.enum_type.values[-1]
        return value.name, value.number
    return {
        FieldDescriptor.CPPTYPE_STRING: ('"text"', "text"),
        FieldDescriptor.CPPTYPE_BOOL: ("true", True),
        FieldDescriptor.CPPTYPE_FLOAT: ("0.5", 0.5),
        FieldDescriptor.CPPTYPE_DOUBLE: ("0.25", 0.25),
    }.get(field.cpp_type, ("7", 7))


def _cases(message, before="", after="", path=()):
    """One text for every field of the message and of the messages in it: (text, path of field names, value)."""
    for field in message.fields:
        here = (*path, field)
        if field.message_type is None:
            text, value = _literals(field)
            yield pytest.param(f"{before}{field.name}: {text}{after}", here, value, id=_id(here))
        else:
            if not field.message_type.fields:
                yield pytest.param(f"{before}{field.name} {{}}{after}", here, None, id=_id(here))
            opening = f"{before}{field.name} {{ "
            if field.message_type.GetOptions().map_entry:
                key, _ = _literals(field.message_type.fields_by_name["key"])
                opening += f"key: {key} "
                value_field = field.message_type.fields_by_name["value"]
                if value_field.message_type is None:
                    text, value = _literals(value_field)
                    yield pytest.param(f"{opening}value: {text} }}{after}", here, value, id=_id(here))
                else:
                    yield from _cases(value_field.message_type, f"{opening}value {{ ", " } }" + after, here)
            else:
                yield from _cases(field.message_type, opening, " }" + after, here)


def _id(path):
    return ".".join(field.name for field in path)


def _reach(message, path):
    for field in path:
        message = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            ((_, message),) = message.items()
        elif field.is_repeated:
            (message,) = message
    return message


CASES = list(_cases(CONFIG_DESCRIPTOR))


@pytest.mark.parametrize(("text", "path", "value"), CASES)
def test_every_field_parses(text, path, value):
    """A text that sets only this field arrives in the message at its place."""
    found = _reach(parse_model_config(text, "config.pbtxt"), path)
    assert value is None or found == value


def test_the_cases_reach_every_message():
    """The texts above touch all fields that hold values, and all messages that hold none."""
    reached = {field.full_name for case in CASES for field in case.values[1]}
    assert len({name for name in reached if not name.endswith("Entry")}) == 164


@pytest.mark.parametrize(
    "text",
    [
        'name: "m" max_batch_size: 4',
        "name: 'm', max_batch_size: 4;",
        "# a comment\nname: 'm' # another\nmax_batch_size: 0x4\n",
        'name: "" "m"\r\nmax_batch_size: 4\r\n',
        b'name: "m"\nmax_batch_size: 4',
    ],
)
def test_spellings(text):
    """The text format has comments, separators, both quotes, concatenation and hexadecimal numbers."""
    config = parse_model_config(text, "config.pbtxt")
    assert (config.name, config.max_batch_size) == ("m", 4)


@pytest.mark.parametrize(
    "text",
    [
        "input [ { name: 'A' dims: [ 1, -1 ] }, { name: 'B' } ]",
        "input: [ { name: 'A' dims: 1 dims: -1 }, { name: 'B' } ]",
        "input { name: 'A' dims: [ 1 ] dims: [ -1 ] } input: < name: 'B' >",
    ],
)
def test_spellings_of_lists(text):
    """Lists may be in brackets or repeated; messages may have a colon and angle brackets."""
    config = parse_model_config(text, "config.pbtxt")
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("A", [1, -1]), ("B", [])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo: 1", 'c.pbtxt:1:1: Message type "inference.ModelConfig" has no field named "foo".'),
        ("\n  input { dims: [1, 2 }", 'c.pbtxt:2:23: Expected ",".'),
        ("max_batch_size: 'four'", "c.pbtxt:1:17: Couldn't parse integer: 'four'"),
        ("max_batch_size: 9999999999", "c.pbtxt:1:17: Value out of range: 9999999999"),
        (
            "input { data_type: FP32 }",
            'c.pbtxt:1:20: Enum type "inference.DataType" has no value named FP32.',
        ),
        ("name: 'm", 'c.pbtxt:1:7: String missing ending quote: "\'m"'),
        (
            "name: 'm' name: 'n'",
            'c.pbtxt:1:17: Message type "inference.ModelConfig" should not have multiple "name" fields.',
        ),
        (b'name: "m"\nmax\xff: 1', "c.pbtxt:2:4: expected UTF-8, found the byte 0xff"),
        ("instance_group { kind: 99999999999 }", "c.pbtxt: Value out of range: 99999999999"),
    ],
)
def test_an_error_says_where_and_what(text, message):
    """File, line and column come first, and then the complaint without the rest of the line."""
    with pytest.raises(LoadError) as caught:
        parse_model_config(text, "c.pbtxt")
    assert str(caught.value) == message


def test_a_string_that_is_not_utf8_has_a_position():
    """Escapes in a quoted string can make bytes that are no text."""
    with pytest.raises(LoadError, match=r"^c\.pbtxt:1:13: Couldn't parse string: 'utf-8'"):
        parse_model_config(r'name: "\377"', "c.pbtxt")


def test_two_schedulers_exclude_each_other():
    """The parser says which members of the oneof collide."""
    with pytest.raises(LoadError, match='"sequence_batching" is specified along with field "dynamic_batching"'):
        parse_model_config("dynamic_batching {} sequence_batching {}", "c.pbtxt")


def test_the_size_is_limited():
    """A text of the limit parses; one byte more is refused unread."""
    assert parse_model_config(b"#" * CONFIG_BYTES_MAX, "c.pbtxt").name == ""
    with pytest.raises(LoadError, match=f"^c.pbtxt: a model configuration has at most {CONFIG_BYTES_MAX} bytes"):
        parse_model_config(b"#" * (CONFIG_BYTES_MAX + 1), "c.pbtxt")


def test_a_complaint_is_not_as_long_as_the_text():
    """The parser's quotation of the text is cut."""
    with pytest.raises(LoadError) as caught:
        parse_model_config("name: " + "x" * 10_000, "c.pbtxt")
    assert len(str(caught.value)) <= len("c.pbtxt:1:7: ") + COMPLAINT_CHARACTERS_MAX


@pytest.mark.parametrize("opening", ["{", "input {", "input { reshape {", "[", "<", "model_metrics { metric_control {"])
def test_deep_nesting_is_an_ordinary_error(opening):
    """The schema is not recursive, so the parser stops at the first message too many."""
    with pytest.raises(LoadError):
        parse_model_config(opening * 20_000, "c.pbtxt")


WORDS = (
    "name input dims data_type TYPE_FP32 parameters key value latest version_policy kind instance_group metric_tags "
    'dynamic_batching priority_queue_policy buckets model_metrics { } [ ] < > : , ; # 0 -1 1e999 nan 0x true " \' "a" '
    r"'\377' '\ud800' 99999999999999999999"
)
TOKENS = st.sampled_from([*WORDS.split(" "), "\n", "\x00", "9" * 5000])


@given(st.one_of(st.binary(), st.text(), st.lists(TOKENS).map(" ".join)))
def test_anything_is_a_message_or_a_load_error(text):
    """No text makes the parser raise anything else."""
    with contextlib.suppress(LoadError):
        parse_model_config(text, "c.pbtxt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name: "m"\nbakend: "python"', ':2:1: Message type "inference.ModelConfig" has no field named "bakend". '
         "Did you mean backend?"),
        ("input { data_type: TYPE_FP33 }", ':1:20: Enum type "inference.DataType" has no value named TYPE_FP33. '
         "Did you mean TYPE_FP32?"),
        ("xyzzy: 1", ':1:1: Message type "inference.ModelConfig" has no field named "xyzzy".'),
    ],
)  # fmt: skip
def test_suggestions(text, complaint):
    """The complaint about an unknown name asks after the one that is almost the same."""
    with pytest.raises(LoadError) as caught:
        parse_model_config(text, "config.pbtxt")
    assert str(caught.value).startswith(f"config.pbtxt{complaint.removesuffix('?')}")


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        ('name: "m"\n\tbakend: "python"\n', '   bakend: "python"\n   ^'),
        ('input [ { name: "a" ', '  input [ { name: "a"\n                  ^'),
        (f"# {'x' * 200}\n{' ' * 200}bakend: 1", f"  {' ' * 49}bakend: 1\n  {' ' * 49}^"),
    ],
)
def test_excerpt(text, excerpt):
    """People are shown the line, or what is around the place in a long one, with a caret below the place."""
    with pytest.raises(LoadError) as caught:
        parse_model_config(text, "config.pbtxt")
    assert caught.value.excerpt == excerpt


def test_no_excerpt():
    """What has no place in a line has none."""
    with pytest.raises(LoadError) as caught:
        parse_model_config(b"\xff", "config.pbtxt")
    assert caught.value.excerpt == ""
