# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`--input <name>=<value>`."""

import numpy as np
import pytest

from pyruntime.runtime.cli.commands.client import WrongUsage
from pyruntime.runtime.cli.commands.inputs import read_inputs
from pyruntime.runtime.cli.commands.tensors import TensorSpec

SPECS = {
    name: TensorSpec(name, datatype, (-1,))
    for name, datatype in (("NUMBERS", "FP32"), ("TEXT", "BYTES"), ("FLAGS", "BOOL"))
}


def values(*texts):
    return {name: array.tolist() for name, array in read_inputs(texts, SPECS).items()}


def refusal(*texts):
    with pytest.raises(WrongUsage) as caught:
        read_inputs(texts, SPECS)
    return str(caught.value)


def test_json():
    """Of as many inputs as there are; a value may hold a "="."""
    assert values("NUMBERS=[1, 2.5]", "FLAGS=true") == {"NUMBERS": [1.0, 2.5], "FLAGS": [True]}
    assert values("TEXT=a=b") == {"TEXT": ["a=b"]}
    assert values() == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hello", ["hello"]),
        ('"hello"', ["hello"]),
        ('["a", "b"]', ["a", "b"]),
        ('"@a"', ["@a"]),
        ("5", ["5"]),
        ("true", ["true"]),
        ("[not JSON", ["[not JSON"]),
        ("", [""]),
        ("{}", ["{}"]),
    ],
)
def test_texts(text, value):
    """A text need not be valid JSON."""
    assert values(f"TEXT={text}") == {"TEXT": value}


def test_files(tmp_path):
    """The name of a file says how it is read."""
    (tmp_path / "a.json").write_text("[1, 2]")
    np.save(tmp_path / "a.npy", np.array([3, 4]))
    (tmp_path / "a.bin").write_bytes(np.array([5, 6], "<f4").tobytes())
    for suffix, value in (("json", [1, 2]), ("npy", [3, 4]), ("bin", [5, 6])):
        assert values(f"NUMBERS=@{tmp_path}/a.{suffix}") == {"NUMBERS": value}
    (tmp_path / "a.txt").write_bytes(b"a\nb\n")
    assert values(f"TEXT=@{tmp_path}/a.txt") == {"TEXT": [b"a\nb\n"]}
    (tmp_path / "t.json").write_text('["a", "b"]')
    assert values(f"TEXT=@{tmp_path}/t.json") == {"TEXT": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.bin", None, "cannot be read: No such file or directory"),
        ("none.npy", None, "cannot be read: No such file or directory"),
        ("a.npy", b"x", "holds no array that could be read"),
        ("a.npy", b"", "holds no array that could be read"),
        ("a.json", b"[1", "is not JSON"),
        ("a.json", b"\xff", "is not JSON"),
        ("a.json", b'["a"]', "it must hold numbers for FP32"),
        ("a.bin", b"123", "3 bytes are no whole number of FP32"),
    ],
)
def test_files_that_do_not_do(tmp_path, name, content, said):
    """The input is named, and the reason."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refusal(f"NUMBERS=@{path}")
    assert message.startswith("--input NUMBERS does not do: ")
    assert said in message


def test_pickles_are_not_read(tmp_path):
    """A file must not run anything."""
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "holds no array that could be read" in refusal(f"TEXT=@{tmp_path}/a.npy")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["NUMBERS"], "--input needs <name>=<value> or <name>=@<file>, not 'NUMBERS'"),
        (["NUMBER=1"], "the model has no input 'NUMBER'; did you mean NUMBERS?"),
        (["X=1"], "the model has no input 'X'; its inputs are NUMBERS, TEXT, FLAGS"),
        (["NUMBERS=1", "NUMBERS=2"], "--input NUMBERS is there twice"),
        (["NUMBERS=abc"], "--input NUMBERS does not do: 'abc' is neither JSON nor @<file>"),
        (["NUMBERS=null"], "--input NUMBERS does not do: 'null' is neither JSON nor @<file>"),
        (["FLAGS=[1]"], "--input FLAGS does not do: it must hold true and false for BOOL"),
    ],
)
def test_what_is_refused(texts, said):
    """In one sentence."""
    assert refusal(*texts) == said
