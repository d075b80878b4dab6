# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/compare_answers without servers: its cases and reasons hold together, and differences are found."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from answer_cases import GROUPS, reasons  # noqa: E402
from answer_differences import Difference, differences, normalise, verdict  # noqa: E402
from answer_steps import case, explain, get  # noqa: E402

DIFFERENCES = " ".join((ROOT / "docs" / "explanation" / "differences.md").read_text().split())


@pytest.mark.parametrize("group", GROUPS)
def test_cases(group):
    """Each case has a name of its own in its group, and something to send."""
    names = [each.name for each in GROUPS[group]]
    assert len(set(names)) == len(names) > 10
    assert all(each.steps for each in GROUPS[group])


def test_reasons():
    """Each reason is a part of the document, word for word, and some case gives it."""
    known = {text for name, text in vars(reasons).items() if name.isupper()}
    assert {text for text in known if text not in DIFFERENCES} == set()
    assert {each.different for cases in GROUPS.values() for each in cases} == known | {""}


def test_explained():
    """Reasons go to cases by patterns of names. A pattern without a case, and a second reason, are mistakes."""
    cases = [case(name, get("/")) for name in ("a b", "a c", "d")]
    assert [each.different for each in explain(cases, {"why": ("a *",)})] == ["why", "why", ""]
    for patterns in (("nobody",), ("a *", "a b")):
        with pytest.raises(ValueError, match="means no case, or one that is explained already"):
            explain(cases, {"why": patterns})


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2]}, []),
        (float("nan"), float("nan"), []),
        ({"a": 1}, {"a": True}, [Difference("a", 1, True)]),
        ({"a": "1"}, {"b": "1"}, [Difference("a", "1", None), Difference("b", None, "1")]),
        ([1, 2], [1, 3], [Difference("[1]", 2, 3)]),
        ([1], [1, 2], [Difference("", [1], [1, 2])]),
        (
            [{"name": "m", "state": "READY"}, {"name": "n"}],
            [{"name": "n", "state": "READY"}, {"name": "m", "state": "READY"}],
            [Difference("n.state", None, "READY")],
        ),
    ],
)
def test_differences(first, second, found):
    """They are listed by their places. The order of an index says nothing."""
    assert differences(first, second) == found


def test_normalised():
    """Times, versions of servers and their folders are made equal, and nothing else."""
    answer = {
        "stats": {"count": 2, "ns": 5},
        "none": {"count": 0, "ns": 0},
        "last_inference": 7,
        "metadata": {"name": "triton", "version": "2.51.0", "extensions": []},
        "error": "At:\n  /tmp/a/m/1/model.py(3): execute\n",
        "path": "/tmp/a/m/config.pbtxt",
    }
    assert normalise(answer, "/tmp/a") == {
        "stats": {"count": 2},
        "none": {"count": 0, "ns": 0},
        "last_inference": "some time",
        "metadata": {"name": "the server", "version": "any", "extensions": []},
        "error": "At:\n  1/model.py(3): execute\n",
        "path": "{repository}/m/config.pbtxt",
    }


def test_verdicts():
    """A difference that is explained but not there is stale."""
    plain = case("a", get("/"))
    (explained,) = explain([plain], {"why": ("a",)})
    found = [Difference("", 1, 2)]
    assert [verdict(plain, []), verdict(plain, found)] == ["same", "different"]
    assert [verdict(explained, []), verdict(explained, found)] == ["stale", "on purpose"]
