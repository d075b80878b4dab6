# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of `pyruntime stats`."""

import pytest

from pyruntime.runtime.cli.commands.statistics import HEADINGS, rows


def model(name="m", version="1", success=0, fail=0, executions=0, inferences=None, us=10):
    def stat(count, each_us):
        return {"count": count, "ns": count * each_us * 1000}

    stats = {"success": stat(success, 10 * us), "fail": stat(fail, 1), "queue": stat(success, us)}
    stats |= {
        f"compute_{step}": stat(success, us * factor) for step, factor in (("input", 1), ("infer", 5), ("output", 2))
    }
    inferences = executions if inferences is None else inferences
    return {
        "name": name, "version": version, "inference_stats": stats,
        "execution_count": executions, "inference_count": inferences,
    }  # fmt: skip


def test_one_row_each():
    """Counts, and averages of times."""
    found = rows([model(success=4, fail=1, executions=2, inferences=8), model("n", "2")])
    assert found == [
        ["m", "1", "4", "1", "2", "4.0", "10 us", "80 us", "100 us"],
        ["n", "2", "0", "0", "0", "", "", "", ""],
    ]
    assert {len(row) for row in found} == {len(HEADINGS)}


@pytest.mark.parametrize(("us", "queue"), [(1, "1 us"), (999, "999 us"), (1500, "1.5 ms"), (2_500_000, "2.50 s")])
def test_units(us, queue):
    """Times have a unit that suits them."""
    assert rows([model(success=1, executions=1, us=us)])[0][6] == queue


def test_rate():
    """Between two moments: how many requests there were each second, and how long those took."""
    before = model(success=10, executions=10, us=10)
    after = model(success=30, executions=30, us=10)
    after["inference_stats"]["queue"]["ns"] += 20 * 100 * 1000
    (row,) = rows([after], [before], 2.0)
    assert (row[6], row[-1]) == ("110 us", "10.0")


def test_rate_of_what_was_idle_or_new():
    """An idle model shows averages over all requests; a new one has no rate yet."""
    idle, new = model(success=10, executions=10), model("n", success=1)
    found = rows([idle, new], [idle], 2.0)
    assert [row[-1] for row in found] == ["0.0", ""]
    assert [row[6] for row in found] == ["10 us", "10 us"]


def test_a_model_that_was_loaded_anew():
    """Its counts begin at nothing again."""
    (row,) = rows([model(success=1)], [model(success=10)], 1.0)
    assert row[-1] == "0.0"


def test_another_servers_numbers():
    """64-bit integers may be texts, and unknown values are left out."""
    bare = {"name": "m", "version": "1", "inference_stats": {"success": {"count": "2", "ns": "4000"}}}
    assert rows([bare]) == [["m", "1", "2", "0", "0", "", "", "", "2 us"]]
