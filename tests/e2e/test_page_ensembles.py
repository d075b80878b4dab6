# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The page shows the steps of an ensemble, and when each of them waited and ran, in a real browser."""

import pytest

from .harness.browser import Page, browsing, needs_browser
from .harness.ensembles import chain, ensemble, step
from .harness.models import COUNT, ECHO

pytestmark = needs_browser

WIDTHS = (360, 1280)
FAIL = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("on purpose")
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
LONG = "a_model_whose_name_is_longer_than_a_telephone_is_wide"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model):
    repository = tmp_path_factory.mktemp("ensembles")
    for name in ("first", "second", LONG):
        write_model(repository, name, ECHO)
    write_model(repository, "failing", FAIL)
    write_model(repository, "count", COUNT, more=DECOUPLED)
    write_model(repository, "pipeline", None, chain("first", "second", LONG))
    # The order of the configuration is not that in which the steps run.
    backwards = ensemble(step("second", {"IN": "t"}, {"OUT": "OUT"}), step("first", {"IN": "IN"}, {"OUT": "t"}))
    write_model(repository, "backwards", None, backwards)
    write_model(repository, "broken", None, chain("first", "failing"))
    write_model(repository, "counting", None, chain("count", "second", more=DECOUPLED))
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def page(browser, server, wait_until):
    page = Page(browser, server, wait_until).shape(1280)
    page.complaints()
    return page


def steps(page):
    """The names of the steps, from top to bottom."""
    return page.texts("section[aria-label=Steps] tbody td:first-child")


def test_before_a_request(page):
    """The steps are there, with links to their models, and say how to learn their times."""
    page.open("pipeline")
    assert steps(page) == ["0 first", "1 second", f"2 {LONG}"]
    assert page.text("section[aria-label=Steps] .hint") == "Run the model to see when each step waits and runs."
    assert page.all(".bars") == []
    with page.drawn_anew():
        page.all("section[aria-label=Steps] tbody a")[0].click()
    assert page.texts("h2") == ["first"]
    assert page.all("section[aria-label=Steps]") == []


def test_times(page):
    """After a request each step has a bar, behind the one of the step before, and its times."""
    page.open("pipeline")
    assert page.run().startswith("1 output in ")
    assert page.text("section[aria-label=Steps] caption").startswith("The last request: ")
    assert page.text("section[aria-label=Steps] .hint") == ""
    labels = [each.accessible_name for each in page.all("svg.bars")]
    assert [label.split(" waits for ")[0] for label in labels] == ["first", "second", LONG]
    assert all(" and runs for " in label for label in labels)
    begins = page.run_script(
        "return [...document.querySelectorAll('.bars .runs')].map((each) => Number(each.getAttribute('x')))"
    )
    assert begins == sorted(begins)
    assert len(begins) == 3
    assert page.complaints() == []


def test_in_the_order_of_time(page):
    """The first one to run stands first, by whatever number."""
    page.open("backwards")
    assert steps(page) == ["0 second", "1 first"]
    page.run()
    assert steps(page) == ["1 first", "0 second"]


def test_a_request_that_fails(page):
    """It has no times, and those of the request before are gone."""
    page.open("broken")
    assert page.run() == "failed"
    assert page.all(".bars") == []
    assert "on purpose" in page.texts(".result .problem")[0]


def test_a_stream(page):
    """A step that runs for each response has several bars, and says how many."""
    page.open("counting").type("Values of IN", "[3]")
    assert page.run().startswith("3 responses in ")
    assert steps(page)[-1] == "1 second"
    counts = [len(each.find_elements("css selector", ".runs")) for each in page.all("svg.bars")]
    assert counts[-1] == 3
    assert " runs 3 times, for " in page.all("svg.bars")[-1].accessible_name
    assert page.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_fits(page, width, scheme):
    """Nothing is wider than the window, and every text can be told from what is behind it."""
    page.open("pipeline").run()
    page.shape(width, scheme=scheme)
    assert page.is_within(width)
    assert page.pale() == []
    widths = page.run_script("return [...document.querySelectorAll('svg.bars')].map((each) => each.clientWidth)")
    assert all(100 < each <= width for each in widths)


ROWS = """(m, times) => {
    const steps = [{model_name: "a", output_map: {OUT: "t"}}, {model_name: "b"}, {model_name: "c"}];
    const {rows, end} = m.rowsOf(steps, times.map(([step, start_us, execute_us, end_us]) =>
        ({step, model: "x", version: 1, start_us, execute_us, end_us})));
    return [rows.map((row) => [row.step, row.model, row.written, row.runs.length, row.waited, row.ran]), end];
}"""


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], [[[0, "a", ["t"], 0, 0, 0], [1, "b", [], 0, 0, 0], [2, "c", [], 0, 0, 0]], 0]),
        (
            [[2, 5, 6, 9], [1, 20, 30, 60], [1, 10, 10, 15]],
            [[[2, "c", [], 1, 1, 3], [1, "b", [], 2, 10, 35], [0, "a", ["t"], 0, 0, 0]], 60],
        ),
    ],
)
def test_rows(page, times, expected):
    """Steps by their beginnings, with sums of their runs; those that were skipped come last."""
    page.open()
    assert page.call("timeline", ROWS, times) == ["ok", expected]
