# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of places in configurations."""

import pytest

from pyruntime.runtime.config.positions import line_of

TEXT = """# platform: "none" {
platform: "ensemble"; name: 'e # "no" comment'
input [
  { name: "I" dims: [ 1, -1 ] },
  { name: "J" data_type: TYPE_FP32
    optional: true }
]
output {
  name: "a" "b"
}
output < name: "P" >
ensemble_scheduling {
  step [ { model_name: "m" },
    {
      model_name: "n"
      input_map { key: "step" value: "{" }
      input_map { key: "b"
        value: "c" }
      output_map: { key: "a" value: "d" } } ]
  step {}
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("platform",), 2),
        (("name",), 2),
        (("input", 0), 3),
        (("input", 0, "dims"), 4),
        (("input", 1, "optional"), 6),
        (("output", 1), 11),
        (("ensemble_scheduling",), 12),
        (("ensemble_scheduling", "step", 0), 13),
        (("ensemble_scheduling", "step", 1, "model_name"), 15),
        (("ensemble_scheduling", "step", 1, "input_map", 1), 17),
        (("ensemble_scheduling", "step", 1, "output_map"), 19),
        (("ensemble_scheduling", "step", 2), 20),
        (("ensemble_scheduling", "step", 2, "input_map"), 20),  # which is not there
        (("ensemble_scheduling", "step", 7), 12),
        (("optimization",), 0),
        ((), 0),
    ],
)
def test_lines(place, line):
    """Repeated fields, in lists and one by one; texts and comments are no fields."""
    assert line_of(TEXT, place) == line
