# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""JSON that only a lenient parser reads, in standard JSON."""

import json

import pytest

from pyruntime.runtime.repository.lenient_json import standard_json


@pytest.mark.parametrize(
    ("lenient", "value"),
    [
        ("{a: 1, $b_2 : [true,]}", {"a": 1, "$b_2": [True]}),
        ("{'a': 'it\\'s \"so\"\\n'}", {"a": 'it\'s "so"\n'}),
        ("{'a': '\\\\', \"b: '\": ',}'}", {"a": "\\", "b: '": ",}"}),
        ('{"a": "x\\", b: [1,]}", }', {"a": 'x", b: [1,]}'}),
        ("[1 , \n]", [1]),
        ("{true: null}", {"true": None}),
    ],
)
def test_lenient(lenient, value):
    """It has the same meaning."""
    assert json.loads(standard_json(lenient)) == value


@pytest.mark.parametrize("text", ['{"a: 1,": "b: [1,]", "c": [1.5e3, true, null, {}, ""]}', '{"a": "\\u00e9\\""}'])
def test_standard(text):
    """What is standard JSON stays as it is."""
    assert standard_json(text) == text


@pytest.mark.parametrize(
    "text", ["{a: b}", "{'a': 'b}", '{"a', "[,]", "{a: 1,,}", "a: 1", "{a b: 1}", "'\\", "{a: 'b\\"]
)
def test_wrong(text):
    """What is wrong in any way stays wrong."""
    with pytest.raises(ValueError):
        json.loads(standard_json(text))
