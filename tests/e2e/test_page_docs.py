# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""/docs in a real browser: the operations of /openapi.json, and requests that are sent from there."""

import json

import pytest

from .harness.browser import Page, browsing, needs_browser

pytestmark = needs_browser

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        array = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in array]
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def open_docs(browser, wait_until):
    def open_docs(server):
        page = Page(browser, server, wait_until)
        page.shape(1280)
        browser.get("about:blank")
        page.complaints()
        browser.get(f"http://127.0.0.1:{server.port}/docs")
        return page

    return open_docs


def open_operation(page, path, method="POST"):
    """Open an operation. Returns what it has."""
    page.wait(lambda: page.all(".operation"))
    script = """
        const [path, method] = arguments;
        const found = [...document.querySelectorAll(".operation")].find((each) =>
            each.querySelector("code").textContent === path && each.querySelector(".method").textContent === method);
        found.open = true;
        return found;
    """
    operation = page.run_script(script, path, method)
    page.wait(lambda: operation.find_elements("css selector", "button.main"))
    return operation


def send(page, operation):
    operation.find_element("css selector", "button.main").click()
    page.wait(lambda: operation.find_element("css selector", "button.main").is_enabled())
    shown = operation.find_elements("css selector", ".result pre, .result .problem")
    return operation.find_element("css selector", ".actions [role=status]").text, [each.text for each in shown]


def test_every_operation_is_there(open_docs, samples):
    """By API, each with its method, path and summary; those of versions when they are wanted."""
    page = open_docs(samples)
    page.wait(lambda: page.all(".operation"))
    document = json.loads(samples.request("GET", "/openapi.json").body)
    every = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]

    def listed():
        operations = [each for each in page.all(".operation > summary") if each.is_displayed()]
        return sorted(tuple(each.text.split("\n")[:2]) for each in operations)

    assert listed() == sorted((method, path) for method, path in every if "/versions/" not in path)
    assert page.texts("#tags .name")[:2] == ["inference", "health"]
    page.one("#versions").click()
    assert listed() == sorted(every)
    page.type("Operations", "unload")
    assert listed() == [("POST", "/v2/repository/models/{model}/unload")]
    assert page.complaints() == []


def test_inference(open_docs, samples):
    """The example of a model's request is one that it takes."""
    page = open_docs(samples)
    operation = open_operation(page, "/v2/models/add_sub/infer")
    status, (answer,) = send(page, operation)
    assert status.startswith("200 OK after ")
    assert [each["name"] for each in json.loads(answer)["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    page.run_script("arguments[0].querySelector('textarea').value = '{'", operation)
    status, (answer,) = send(page, operation)
    assert status.startswith("400 ")
    assert "error" in json.loads(answer)


def test_parameters(open_docs, samples):
    """Those of paths are filled in and escaped; a missing one is not sent."""
    page = open_docs(samples)
    operation = open_operation(page, "/v2/models/{model}/config", "GET")
    status, (answer,) = send(page, operation)
    assert status.startswith("200 ")
    assert json.loads(answer)["name"] in operation.text
    operation = open_operation(page, "/v2/repository/models/{model}/load")
    assert send(page, operation) == ("not sent", ["model: a value is needed."])
    operation.find_element("css selector", "input[type=text]").send_keys("a/b")
    status, (answer,) = send(page, operation)
    assert status.startswith("503 Service Unavailable after "), answer
    (copy,) = [each for each in operation.find_elements("css selector", "button") if each.text == "Copy as curl"]
    copy.click()
    page.wait(lambda: operation.find_element("css selector", ".copied pre").text)
    text = operation.find_element("css selector", ".copied pre").text
    assert text == f"curl -X POST 'http://127.0.0.1:{samples.port}/v2/repository/models/a%2Fb/load'"


def test_schemas(open_docs, samples):
    """What a body consists of is listed, with what is required."""
    page = open_docs(samples)
    operation = open_operation(page, "/v2/models/add_sub/infer")
    lines = page.run_script(
        "return Array.from(arguments[0].querySelector('.schema').children, (each) => each.textContent)", operation
    )
    assert lines[0].strip() == "object"
    assert any(line.startswith("inputs [") and line.endswith(" required") for line in lines)
    assert any(line.startswith("INPUT0 ") for line in lines)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_fits(open_docs, samples, width, scheme):
    """Nothing is wider than the window, and each control has a name."""
    page = open_docs(samples)
    page.shape(width, scheme=scheme)
    operation = open_operation(page, "/v2/models/add_sub/infer")
    send(page, operation)
    assert page.is_within(width)
    for element in page.all("input, textarea, select, button"):
        if element.is_displayed():
            assert element.accessible_name.strip(), element.get_attribute("outerHTML")


def test_restricted(open_docs, model, serve):
    """The page asks for the header of the document, and of an operation."""
    model("echo", ECHO)
    page = open_docs(serve("--http-restricted-api=metadata:key-1=one", "--http-restricted-api=statistics:key-2=two"))
    page.wait(lambda: page.texts("main .problem"))
    page.one(".keys input").send_keys("one")
    page.button("Open").click()
    page.wait(lambda: page.all(".operation"))
    operation = open_operation(page, "/v2/models/stats", "GET")
    status, _ = send(page, operation)
    assert status.startswith("403 ")
    page.one(".keys input").send_keys("two")
    page.button("Open").click()
    status, _ = send(page, operation)
    assert status.startswith("200 ")
