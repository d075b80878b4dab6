# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Text, upper-cased and counted."""


def test_text(load_model):
    """A list of str is a BYTES tensor of UTF-8; an output is an array of bytes."""
    result = load_model("model_repository/strings").infer({"TEXT": ["stone", "straße"]})
    assert [each.decode() for each in result["UPPER"]] == ["STONE", "STRASSE"]
    assert result["LENGTHS"].tolist() == [5, 6]


def test_no_text(load_model):
    """An empty tensor of texts has empty outputs."""
    result = load_model("model_repository/strings").infer({"TEXT": []})
    assert result["UPPER"].shape == result["LENGTHS"].shape == (0,)
