# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The page follows a server, in a real browser: states, plots, log, stacks, load and unload, a server that is gone."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest

from .harness.browser import Page, browsing, needs_browser
from .harness.waiting import LIMIT_S

pytestmark = needs_browser

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if array.size and array[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            pb_utils.Logger.log_warn(f"it was given {array.size} values")
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return made
"""
WIDTHS = (360, 1280)
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def open_page(browser, wait_until):
    """`open_page(server, model="")`: the page of a server, which has heard of it."""

    def open_page(server, model=""):
        page = Page(browser, server, wait_until)
        page.shape(1280)
        page.complaints()
        page.open(model)
        wait_until(lambda: page.texts("#readiness") not in ([""], []))
        return page

    return open_page


def infer(server, count=1, value=1):
    for _ in range(count):
        server.infer("echo", {"IN": np.full(3, value, np.int64)})


# The overview.


def test_overview(model, serve, open_page, wait_until):
    """It shows every model, the reason of one that failed, and figures that follow what the server does."""
    model("echo", ECHO)
    model("broken", "raise RuntimeError('<i>no weights</i>')")
    server = serve(*EXPLICIT, "--strict-readiness=false")
    page = open_page(server)
    wait_until(lambda: page.texts("table.compact .name") == ["broken", "echo"])
    assert page.texts("table.compact .badge") == ["unavailable", "ready"]
    assert "<i>no weights</i>" in page.text(".problems .problem p")
    assert page.all("i") == []
    assert page.texts(".tile .figure")[0] == "1 of 2"
    infer(server, 5)
    wait_until(lambda: "5 in all" in page.texts(".tile .hint"))
    wait_until(lambda: page.all(".timechart polyline"))
    labels = [each.accessible_name for each in page.all("svg.chart")]
    assert [label.partition(" over ")[0] for label in labels] == ["Requests per second", "Mean latency"]
    assert page.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_fits(model, serve, open_page, wait_until, width, scheme):
    """Nothing is wider than the window, every text can be told from what is behind it, and every control has a name."""
    model("echo", ECHO)
    model("a_model_whose_name_is_longer_than_a_telephone_is_wide_" * 2, ECHO)
    server = serve(*EXPLICIT)
    infer(server)
    for name in ("", "echo"):
        page = open_page(server, name)
        page.shape(width, scheme=scheme)
        wait_until(lambda page=page: page.texts(".log li"))
        if name:
            page.run()
            page.button("Show stacks").click()
            wait_until(lambda page=page: page.texts(".stacks pre"))
            page.button("Copy as Python").click()
        wait_until(lambda page=page: page.all(".timechart text"))
        assert page.is_within(width)
        assert page.pale() == []
        if not name:  # a table in which a link has the focus is not drawn anew
            page.run_script("document.querySelector('main table a').focus()")
        for element in page.all("input, textarea, select, button, canvas, svg, a, [role=img]"):
            if element.is_displayed():
                assert element.accessible_name.strip(), element.get_attribute("outerHTML")


def test_list_on_a_phone(model, serve, open_page, wait_until):
    """It is behind a button, which the keyboard reaches as well."""
    from selenium.webdriver.common.keys import Keys

    model("echo", ECHO)
    page = open_page(serve())
    page.shape(360)
    wait_until(lambda: page.texts("#models .name") == ["echo"])
    assert not page.one("#nav").is_displayed()
    page.one("#menu").send_keys(Keys.ENTER)
    assert page.one("#menu").get_attribute("aria-expanded") == "true"
    page.one("#models a").click()
    wait_until(lambda: page.texts("h2") == ["echo"])
    assert not page.one("#nav").is_displayed()


# One model.


def test_model_follows(model, serve, open_page, wait_until):
    """Counters, restarts and the model's log lines come by themselves, and what is being typed stays."""
    model("echo", ECHO)
    server = serve()
    page = open_page(server, "echo")
    page.type("Values of IN", "[7, 8]")
    infer(server, 3)
    wait_until(lambda: any("3 inferences in 3 executions" in each for each in page.texts("caption")))
    wait_until(lambda: sum("it was given 3 values" in each for each in page.texts(".log .text")) == 3)
    assert page.texts(".log li[data-level=W] .level") == ["W"] * 3
    with pytest.raises(Exception, match="killed"):
        infer(server, value=-1)
    wait_until(lambda: page.texts('.card td[data-title="restarts"]') == ["1"])
    assert page.named("Values of IN").get_attribute("value") == "[7, 8]"
    page.choose("Levels", "errors")
    assert all("it was given" not in each for each in page.texts(".log .text"))
    assert page.complaints() == []


LEVELS = "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.gate = os.path.join(args["model_repository"], "gate")

    def execute(self, requests):
        while not os.path.exists(self.gate):
            time.sleep(0.001)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""


def test_levels(model, serve, open_page, wait_until):
    """The instances say what waits in which priority level."""
    folder = model("gated", GATED, more=LEVELS)
    server = serve()
    page = open_page(server, "gated")
    tensor = {"IN": np.ones((1, 1), np.int64)}
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.infer, "gated", tensor, priority=each) for each in (3, 3, 3, 3)]
        # One of them is executed.
        wait_until(lambda: any("3 queued (3 of level 3)" in each for each in page.texts("caption")))
        (folder / "gate").touch()
        for each in answers:
            each.result()
    wait_until(lambda: any("0 queued, " in each for each in page.texts("caption")))


def test_stacks(model, serve, open_page, wait_until):
    """A button shows where the threads of the model are."""
    model("echo", ECHO)
    page = open_page(serve(), "echo")
    wait_until(lambda: page.one(".tools button").is_displayed())
    page.button("Show stacks").click()
    wait_until(lambda: "MainThread" in "".join(page.texts(".stacks pre")))
    assert page.text(".stacks summary").startswith("echo_0 version 1, process ")


def test_load_and_unload(model, serve, open_page, wait_until):
    """Unloading is asked about; the view follows, and the form is back when the model is."""
    model("echo", ECHO)
    server = serve(*EXPLICIT)
    page = open_page(server, "echo")
    wait_until(lambda: page.one(".control").is_displayed())
    page.button("Unload …").click()
    page.button("Cancel").click()
    assert page.texts(".version") == ["version 1 ready"]
    page.button("Unload …").click()
    page.button("Unload").click()
    wait_until(lambda: page.texts(".version") == ["version 1 unavailable"])
    wait_until(lambda: not page.all("form button.main"))
    page.button("Load").click()
    wait_until(lambda: page.texts(".version") == ["version 1 ready"])
    wait_until(lambda: page.all("form button.main"))
    assert page.run().startswith("1 output in ")


def test_no_control(model, serve, open_page, wait_until):
    """Nothing is offered that the server refuses."""
    model("echo", ECHO)
    page = open_page(serve(), "echo")
    wait_until(lambda: page.texts(".version") == ["version 1 ready"])
    assert not page.one(".control").is_displayed()


# The server itself.


def test_gone_and_back(model, serving, open_page, wait_until, tmp_path, reserve_ports):
    """The page says since when there is no server, and goes on with the next one."""
    model("echo", ECHO)
    with reserve_ports(1) as (port,):
        with serving(tmp_path, port=port) as server:
            page = open_page(server, "echo")
            wait_until(lambda: page.texts("#readiness") == ["ready"])
            assert not page.one("#banner").is_displayed()
        wait_until(lambda: page.texts("#readiness") == ["gone"])
        assert page.text("#banner").startswith("The server does not answer since ")
        with serving(tmp_path, port=port) as second:
            wait_until(lambda: page.texts("#readiness") == ["ready"])
            assert not page.one("#banner").is_displayed()
            infer(second)
            wait_until(lambda: any("1 inferences in 1 executions" in each for each in page.texts("caption")))
            assert page.run().startswith("1 output in ")


def test_restricted(model, serve, open_page, wait_until):
    """Closed parts are left out; the page asks for the header, says that a value is wrong, and keeps the right one."""
    model("echo", ECHO)
    restricted = "model-repository,statistics,logging,inference,model-config:admin-key=secret"
    page = open_page(serve("--model-control-mode=explicit", "--load-model=*", f"--http-restricted-api={restricted}"))
    wait_until(lambda: page.all(".keys"))
    wait_until(lambda: page.one(".keys").is_displayed())
    assert "inference, logging, model-config, model-repository, statistics" in page.text(".keys label")
    assert page.texts("#models .name") == []
    assert not page.one(".log").is_displayed()
    assert not page.one(".charts").is_displayed()
    for value, is_right in (("wrong", False), ("secret", True)):
        page.one(".keys input").send_keys(value)
        page.button("Open").click()
        if not is_right:
            wait_until(lambda: page.text(".keys [role=status]") == "That is not the value.")
    wait_until(lambda: page.texts("#models .name") == ["echo"])
    wait_until(lambda: not page.one(".keys").is_displayed())
    wait_until(lambda: page.texts(".log li"))
    page.one("#models a").click()
    wait_until(lambda: page.texts("h2") == ["echo"])
    wait_until(lambda: page.one(".control").is_displayed())
    assert page.run().startswith("1 output in ")
    page.button("Copy as curl").click()
    wait_until(lambda: page.texts(".copied pre") != [""])
    assert "admin-key: $KEY" in page.text(".copied pre")
    assert "secret" not in page.run_script("return document.documentElement.outerHTML")


def test_internals_are_for_this_machine(model, serve, open_page, wait_until, browser):
    """A page under another name of the server shows no log lines and no stacks, and says why."""
    model("echo", ECHO)
    server = serve("--http-address=0.0.0.0")
    page = open_page(server)
    wait_until(lambda: page.texts(".log li"))
    browser.get("about:blank")
    browser.get(f"http://0.0.0.0:{server.port}/#/echo")
    wait_until(lambda: page.texts("#readiness") == ["ready"])
    wait_until(lambda: page.texts("h2") == ["echo"])
    assert not page.texts(".log .text")
    assert not page.one(".log").is_displayed()
    assert any("own machine" in each for each in page.texts(".card .hint"))
    assert not page.one(".card .tools button").is_displayed()


# Requests to take along.


def copied(page, which):
    page.button(f"Copy as {which}").click()
    page.wait(lambda: page.texts(".copied pre") not in ([], [""]))
    return page.text(".copied pre")


@pytest.mark.parametrize("which", ["curl", "Python"])
def test_copies_work(model, serve, open_page, which):
    """The command and the program do what the form does."""
    model("echo", ECHO)
    model("text", ECHO.replace("array[0] < 0", "False"), TEXT)
    server = serve()
    for name, values, expected in (
        ("echo", "[9223372036854775807, 2]", "9223372036854775807"),
        ("text", 'it\'s "so" ü', "so"),
    ):
        page = open_page(server, name)
        page.type("Values of IN" if name == "echo" else "IN", values)
        text = copied(page, which)
        command = ["bash", "-c", text] if which == "curl" else [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


TEXT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number + 70], np.int64))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("which", ["curl", "Python"])
def test_copies_of_streams_work(model, serve, open_page, which):
    """They print every response of a decoupled model."""
    config = 'backend: "python" model_transaction_policy { decoupled: true }\n'
    tensors = "".join(
        f'{kind} [ {{ name: "{name}" data_type: TYPE_INT64 dims: [ 1 ] }} ]\n'
        for kind, name in (("input", "IN"), ("output", "OUT"))
    )
    model("stream", STREAM, config + tensors)
    page = open_page(serve(), "stream")
    page.type("IN", "3")
    text = copied(page, which)
    command = ["bash", "-c", text] if which == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert all(str(number) in done.stdout for number in (70, 71, 72))


CURL = "(m, inputs) => m.curl({url: 'http://h:1', name: 'a b', version: '2', decoupled: false, header: 'k'}, inputs)"


def test_snippets(model, serve, open_page):
    """Names are escaped; what JSON cannot hold, or a command line, is refused with the way out."""
    model("echo", ECHO)
    page = open_page(serve())

    def curl(**tensor):
        return page.call("snippets", CURL, [{"name": "IN", "shape": [2], **tensor}])

    status, text = curl(datatype="INT32", values=[1, 2])
    assert status == "ok"
    assert text.splitlines() == [
        f"curl 'http://h:1/v2/models/{quote('a b')}/versions/2/infer' \\",
        '  -H "k: $KEY" \\',
        "  -H 'Content-Type: application/json' \\",
        '  -d \'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}\'',
    ]
    assert curl(datatype="FP16", values=[1, 2]) == ["error", "IN: FP16 has no form in JSON. Copy it as Python."]
    assert curl(datatype="INT8", values=[0] * 3000) == [
        "error", "IN: 3000 values are too many for a command. Copy it as Python.",
    ]  # fmt: skip


# What the page computes.

HISTORY = """(m) => {
    const row = (success, ns, more) => ({name: "m", version: "1", since_ms: 1, success, failure: 0, inferences: success,
        executions: success, queued: 0, ns: {total: ns, queue: ns / 2, input: 0, infer: ns / 4, output: 0}, ...more});
    const history = new m.History();
    const add = (now_ms, began_ms, ...versions) => history.add({server: {now_ms, began_ms}, versions});
    add(1000, 1, row(10, 0));
    add(3000, 1, row(14, 8e6));
    add(5000, 1, row(14, 8e6));
    add(7000, 1, row(2, 0, {since_ms: 6000}));
    add(9000, 1, row(4, 4e6, {since_ms: 6000}));
    add(10000, 2, row(1, 0, {since_ms: 9500}));
    add(10500, 2, row(2, 0, {since_ms: 9500}));
    return history.points("m").map((each) => [each.at, each.requests, each.latency, each.queue]);
}"""


def test_history(model, serve, open_page):
    """Rates and means are of what was counted in between; a model or a server that begins anew gives no wrong ones."""
    model("echo", ECHO)
    page = open_page(serve())
    assert page.call("history", HISTORY)[1] == [
        [3000, 2, 2, 1], [5000, 0, None, None], [7000, 0, None, None], [9000, 1, 2, 1], [10500, 2, 0, 0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("short", 0, "0"), ("short", 0.1234, "0.123"), ("short", 12.34, "12.3"), ("short", 12345.6, "12,346"),
        ("short", None, "\u2013"), ("duration", 0.0123, "12.3 µs"), ("duration", 12.3, "12.3 ms"),
        ("duration", 1234, "1.23 s"), ("span", 59_400, "59 s"), ("span", 61_000, "1 min"),
        ("span", 7_260_000, "2 h 1 min"), ("span", 90_000_000, "1 d 1 h"), ("bytes", 0, "0 B"),
        ("bytes", 1536, "1.5 KiB"), ("bytes", 3 << 30, "3 GiB"),
    ],
)  # fmt: skip
def test_formats(samples_page, function, value, text):
    """Numbers have the digits that matter."""
    assert samples_page.call("format", "(m, name, value) => m[name](value)", function, value) == ["ok", text]


@pytest.fixture(scope="module")
def samples_page(browser, samples, wait_until):
    return Page(browser, samples, wait_until).open()
