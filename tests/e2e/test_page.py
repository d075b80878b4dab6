# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The page, in a real browser: looking at models, trying them, and drawing their outputs. See CONTRIBUTING.md."""

import json
import struct
import zlib

import numpy as np
import pytest

from .harness.browser import Page, browsing, needs_browser

pytestmark = needs_browser

ROOT_SAMPLES = ("add_sub", "decoupled", "faulty", "identity", "versions")
# The server refuses to load it, and lists it.
NAME = "a <b>&\"' name"
MARKUP = "<img src=x onerror=\"document.title='taken'\"><b id=taken>bold</b>"

PICTURE = """
class TritonPythonModel:
    def execute(self, requests):
        rows, columns = np.mgrid[0:24, 0:32].astype(np.uint8)
        picture = np.stack([rows * 10, columns * 8, np.full_like(rows, 200)], axis=2)
        outputs = [
            pb_utils.Tensor("PICTURE", picture),
            pb_utils.Tensor("PLANES", (np.moveaxis(picture, 2, 0) / 255).astype(np.float32)),
            pb_utils.Tensor("FILE", np.array([PNG], dtype=np.object_)),
        ]
        return [pb_utils.InferenceResponse(outputs) for _ in requests]
"""
PICTURE_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_BOOL dims: [ 1 ] } ]
output [
  { name: "PICTURE" data_type: TYPE_UINT8 dims: [ 24, 32, 3 ] },
  { name: "PLANES" data_type: TYPE_FP32 dims: [ 3, 24, 32 ] },
  { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
MEAN = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            picture = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            means = picture.reshape(-1, 3).mean(axis=0).astype(np.float32)
            shape = np.array(picture.shape, dtype=np.int64)
            outputs = [pb_utils.Tensor("MEANS", means), pb_utils.Tensor("SHAPE", shape)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
MEAN_CONFIG = """
backend: "python"
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]
output [ { name: "MEANS" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "SHAPE" data_type: TYPE_INT64 dims: [ 3 ] } ]
"""
WAVES = """
class TritonPythonModel:
    def execute(self, requests):
        x = np.linspace(0, 6, 2000, dtype=np.float32)
        waves = np.stack([np.sin(x), np.cos(x), np.where(x > 3, np.nan, 0)], axis=1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WAVES", waves)]) for _ in requests]
"""
WAVES_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "WAVES" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
"""
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return made
"""
COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])):
                squares = np.arange(number + 1, dtype=np.int64) ** 2
                outputs = [pb_utils.Tensor("N", np.array([number], np.int64)), pb_utils.Tensor("SQUARES", squares)]
                sender.send(pb_utils.InferenceResponse(outputs))
            if number > 4:
                error = pb_utils.TritonError("that is enough")
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "N" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "SQUARES" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


def echo_config(datatype, dims="-1", more=""):
    return f"""
    backend: "python" {more}
    input [ {{ name: "IN" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]
    output [ {{ name: "OUT" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]
    """


def png(height, width, colour):
    """A picture of one colour, as a file."""

    def chunk(kind, contents):
        return struct.pack(">I", len(contents)) + kind + contents + struct.pack(">I", zlib.crc32(kind + contents))

    rows = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, request):
    repository = tmp_path_factory.mktemp("page")
    samples = request.config.rootpath / "model_repository"
    for name in ROOT_SAMPLES:
        (repository / name).symlink_to(samples / name)
    write_model(repository, "picture", PICTURE.replace("PNG", repr(png(5, 7, (255, 0, 0)))), PICTURE_CONFIG)
    write_model(repository, "mean", MEAN, MEAN_CONFIG)
    write_model(repository, "waves", WAVES, WAVES_CONFIG)
    write_model(repository, "count", COUNT, COUNT_CONFIG)
    write_model(repository, "text", ECHO, echo_config("STRING"))
    write_model(repository, "half", ECHO, echo_config("FP16", "2, 3", "max_batch_size: 8"))
    write_model(repository, "wide", ECHO, echo_config("INT64"))
    write_model(repository, NAME, ECHO, echo_config("FP32"))
    write_model(repository, "broken", "raise RuntimeError('<i>no</i>')")
    with serving(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def page(browser, server, wait_until):
    page = Page(browser, server, wait_until)
    page.complaints()
    return page


# Looking at models.


def test_list(page):
    """Every model is there with its state, and a filter leaves those that are meant."""
    page.open()
    page.wait(lambda: page.texts("#models .name"))
    states = dict(zip(page.texts("#models .name"), page.texts("#models .badge"), strict=True))
    assert {name: state for name, state in states.items() if state != "ready"} == {
        "broken": "unavailable",
        NAME: "unavailable",
    }
    assert {*ROOT_SAMPLES, "picture"} <= set(states)
    assert page.texts("#server") == ["pyruntime"]
    assert page.texts("#readiness") == ["ready"]
    page.type("Models", "COUN")
    assert page.texts("#models .name") == ["count"]
    assert page.complaints() == []


def test_keyboard(page, browser):
    """A model can be chosen, and tried, without a mouse."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.wait(lambda: page.texts("#models .name"))
    with page.drawn_anew():
        page.named("Models").send_keys("wide", Keys.TAB, Keys.ENTER)
    assert page.texts("h2") == ["wide"]
    with page.drawn_anew():  # by its one version, which is the next link
        ActionChains(browser).send_keys(Keys.TAB, Keys.ENTER).perform()
    assert page.texts(".version[aria-current]") == ["version 1 ready"]
    page.named("Values of IN").send_keys(Keys.TAB, Keys.ENTER)
    page.wait(lambda: page.texts(".output h4") == ["OUT INT64 [16]"])


def test_model(page):
    """A model's inputs, outputs, versions, configuration and statistics."""
    page.open("identity")
    assert page.texts(".states .hint") == ["python · no batches"]
    rows = page.texts(".card tbody tr")
    assert "inputINPUT_FP16FP16[-1]optional" in rows
    assert "outputOUTPUT_BF16BF16[-1]" in rows
    assert json.loads(page.texts("details pre")[-1])["name"] == "identity"
    page.open("versions")
    assert page.texts(".version") == ["version 1 ready", "version 3 ready"]
    assert page.texts(".version[aria-current]") == ["version 3 ready"]
    page.open("versions", 1).run()
    page.wait(lambda: any("Version 1: 1 inferences in 1 executions" in each for each in page.texts("caption")))
    assert page.texts(".version[aria-current]") == ["version 1 ready"]


def test_model_that_is_not_there(page):
    """The server's error is shown, and the reason is shown as text."""
    page.open("nobody")
    assert page.texts(".problem")[0] == "404: Request for unknown model: 'nobody' is not found"
    page.open("broken")
    assert "<i>no</i>" in "".join(page.texts(".states .problem"))
    assert page.all("i") == []


def test_every_control_has_a_name(page):
    """Each control and each drawing has a name, for people who cannot see the page."""
    for model in ("identity", "picture", "decoupled", "mean"):
        page.open(model).run()
        for element in page.all("input, textarea, select, button, canvas, svg, a, [role=img]"):
            if element.is_displayed() and element.get_attribute("class") != "skip":
                assert element.accessible_name.strip(), element.get_attribute("outerHTML")


# Trying them.


def test_infer(page):
    """Two inputs, two outputs: values as they are, a plot of each."""
    page.open("add_sub")
    page.type("Values of INPUT0", json.dumps(list(range(16)))).type("Values of INPUT1", " ".join(["0.1"] * 16))
    assert page.run().startswith("2 outputs in ")
    found = page.outputs()
    assert json.loads(found["OUTPUT0"])[:3] == [0.1, 1.1, 2.1]
    assert json.loads(found["OUTPUT1"])[15] == 14.9
    labels = [each.accessible_name for each in page.all("svg.plot")]
    assert labels == ["OUTPUT0: 16 values from 0.1 to 15.1", "OUTPUT1: 16 values from -0.1 to 14.9"]
    assert len(page.all("circle")) == 32
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ("[1, 2", "INPUT0: "),
        ("[1, 2]", "INPUT0: 2 values do not make the shape [16]."),
        (json.dumps(["x"] * 16), 'INPUT0: "x" is not a number.'),
        ("[[1, 2], [3]]", "INPUT0: The lists are not of equal lengths."),
    ],
)
def test_values_that_are_wrong(page, values, problem):
    """The page names the input, and sends no request."""
    page.open("add_sub").type("Values of INPUT0", values)
    assert page.run() == "failed"
    (said,) = page.texts(".result .problem")
    assert said.removeprefix("INPUT0: ").strip()
    assert said.startswith(problem)


def test_error_of_a_model(page):
    """It is shown as the server says it, and the page goes on."""
    page.open("faulty").type("COMMAND", "error")
    assert page.run() == "failed"
    assert page.texts(".result .problem") == ["400: refused on purpose"]
    page.type("COMMAND", "ok")
    assert page.run().startswith("1 output in ")
    assert page.outputs() == {"OUTPUT": '["ok"]'}


def test_markup_is_text(page, browser):
    """Texts and names of models do not become markup of the page."""
    page.open("text").type("Values of IN", json.dumps([MARKUP, "plain"]))
    page.run()
    assert json.loads(page.outputs()["OUT"]) == [MARKUP, "plain"]
    assert page.all("#taken") == []
    page.open(NAME)
    assert page.texts("h2") == [NAME]
    assert "invalid characters" in page.texts(".states .problem")[0]
    page.open("faulty").type("COMMAND", MARKUP)
    assert page.run() == "failed"
    assert MARKUP in page.texts(".result .problem")[0]
    assert page.all("#taken, b, main img") == []
    assert browser.title != "taken"


def test_integers_beyond_doubles(page):
    """64-bit integers are exact."""
    page.open("wide").type("Values of IN", "[9223372036854775807, -9223372036854775808]")
    page.run()
    assert page.outputs()["OUT"] == "[9223372036854775807, -9223372036854775808]"
    page.type("Values of IN", "9223372036854775808")
    assert page.run() == "failed"
    assert page.texts(".result .problem") == ["IN: 9223372036854775808 is out of range for INT64."]


def test_half_precision_in_a_batch(page):
    """FP16 has no JSON form; here it travels as binary data. The values are nested as the shape is."""
    page.open("half").type("Values of IN", "[[[1, 2.5, -0.1], [65504, 0, 6e-8]], [[1, 2, 3], [4, 5, 6]]]")
    page.run()
    assert page.texts(".output h4") == ["OUT FP16 [2, 2, 3]"]
    expected = np.float16([[[1, 2.5, -0.1], [65504, 0, 6e-8]], [[1, 2, 3], [4, 5, 6]]])
    assert np.array_equal(np.float16(json.loads(page.outputs()["OUT"])), expected)
    page.choose("Where the values of IN come from", "random values").type("Shape of random IN", "3, 2, 3").run()
    assert page.texts(".output h4") == ["OUT FP16 [3, 2, 3]"]


def test_pictures(page):
    """Tensors that look like pictures are shown as such, whichever way the channels lie; so are files of pictures."""
    page.open("picture").run()
    page.wait(lambda: len(page.all("canvas")) == 3 and page.pixel(2, 0, 0)[3])
    assert [each.accessible_name for each in page.all("canvas")][:2] == [
        "PICTURE, picture 1 of 1",
        "PLANES, picture 1 of 1",
    ]
    for index in (0, 1):
        assert page.pixel(index, 0, 0) == [0, 0, 200, 255]
        assert page.pixel(index, 31, 23) == [230, 248, 200, 255]
    assert page.pixel(2, 6, 4) == [255, 0, 0, 255]
    assert page.complaints() == []


def test_series(page):
    """[N, k] numbers are k lines; numbers that are not finite are left out."""
    page.open("waves").run()
    (plot,) = page.all("svg.plot")
    assert plot.accessible_name == "WAVES: 2,000 values from -1 to 1"
    lines = page.all("svg.plot polyline")
    assert len(lines) == 3
    assert [len(line.get_attribute("points").split()) for line in lines] == [1200, 1200, 600]
    assert page.texts(".legend li") == ["0", "1", "2"]
    assert page.texts(".output summary") == ["The first 1,000 of 6,000 values"]


def test_image_from_a_file(page, tmp_path):
    """An image's pixels become the tensor, in the image's own size where the model takes any."""
    (tmp_path / "red.png").write_bytes(png(10, 12, (250, 128, 3)))
    page.open("mean").choose("Where the values of IMAGE come from", "a file")
    page.named("File for IMAGE").send_keys(str(tmp_path / "red.png"))
    page.run()
    assert page.outputs() == {"MEANS": "[250, 128, 3]", "SHAPE": "[10, 12, 3]"}


def test_raw_file(page, tmp_path):
    """The bytes of a file are a tensor's values, or the one element of BYTES."""
    (tmp_path / "raw").write_bytes(np.arange(5, dtype=np.int64).tobytes())
    page.open("wide").choose("Where the values of IN come from", "a file")
    assert page.run() == "failed"
    assert page.texts(".result .problem") == ["IN: choose a file."]
    page.named("File for IN").send_keys(str(tmp_path / "raw"))
    page.run()
    assert page.outputs() == {"OUT": "[0, 1, 2, 3, 4]"}
    page.open("text").choose("Where the values of IN come from", "a file")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\xfd")  # no text
    page.named("File for IN").send_keys(str(tmp_path / "raw"))
    page.run()
    assert page.outputs() == {"OUT": "[<3 bytes>]"}


def test_stream_of_text(page):
    """The responses of a decoupled model are listed as they come, and words are put together."""
    page.open("decoupled")
    page.type("TEXT", "to be or not")
    assert page.run().startswith("4 responses in ")
    assert page.texts(".stream") == ["to be or not"]
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all(".result tbody tr")]
    assert [[row[0], *row[2:]] for row in rows] == [
        ["1", '"to"', "0"], ["2", '"be"', "1"], ["3", '"or"', "2"], ["4", '"not"', "3"],
    ]  # fmt: skip
    (plot,) = page.all("svg.plot")
    assert plot.accessible_name == "INDEX: 4 values from 0 to 3"


def test_optional_input(page):
    """It is sent if it is asked for."""
    page.open("decoupled").type("TEXT", "a b")
    page.named("Send this optional input").click()
    page.type("REPEAT", "3")
    assert page.run().startswith("6 responses in ")


def test_stream_that_fails(page):
    """The responses before the error stay, with drawings of their values."""
    page.open("count").type("IN", "6")
    assert page.run() == "failed"
    assert page.texts(".result .problem") == ["that is enough"]
    labels = [each.accessible_name for each in page.all("svg.plot")]
    assert labels == ["N: 6 values from 0 to 5", "SQUARES: 6 values from 0 to 25"]
    assert len(page.all(".result tbody tr")) == 6
    page.type("IN", "x")
    assert page.run() == "failed"


def test_stopping(page, server, wait_until):
    """A stream that is stopped ends, for the model as well."""
    page.open("decoupled").type("TEXT", "word " * 1000)
    page.one("button.main").click()
    wait_until(lambda: len(page.all(".result tbody tr")) > 2)
    (stop,) = [each for each in page.all("button") if each.text == "Stop"]
    stop.click()
    assert page.ended() == "stopped"
    assert page.texts(".result .problem") == []
    wait_until(lambda: "the client hung up" in server.log)


# Tensors, as the page's own code has them.

EVERY = {
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
ROUND = """(m, datatype, text) => {
    const packed = m.pack(datatype, m.parseValues(text, datatype));
    return [Array.from(packed), m.writeJson(m.unpack(datatype, packed))];
}"""


@pytest.mark.parametrize("datatype", EVERY)
def test_numbers(page, datatype):
    """Numbers become the bytes that numpy makes of them, and come back."""
    page.open()
    kind = np.dtype(EVERY[datatype])
    if kind.kind == "f":
        limits = np.finfo(kind)
        values = [0, 1, -2.5, 0.1, 1 / 3, float(limits.max), float(limits.smallest_subnormal), float(limits.tiny)]
        values += np.random.default_rng(1).standard_normal(200).tolist()
        if datatype == "FP16":  # every one there is, and what lies between two of them
            whole = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(float)
            whole = whole[np.isfinite(whole)]
            values = [*whole.tolist(), *(whole[:-1:7] + np.diff(whole)[::7] / 2).tolist()]
    else:
        limits = np.iinfo(kind)
        values = [0, 1, 100, int(limits.max), int(limits.min)]
    expected = np.array(values, dtype=kind)
    status, (packed, text) = page.call("tensors", ROUND, datatype, json.dumps(values))
    assert status == "ok"
    assert bytes(packed) == expected.tobytes()
    assert np.array_equal(np.array(json.loads(text), dtype=kind), expected)


def test_other_datatypes(page):
    """BF16 is the upper half of FP32, rounded; BOOL is a byte; BYTES have their lengths before them."""
    page.open()
    assert page.call("tensors", ROUND, "BF16", "[1, -2, 1.00390625, 1.01171875]")[1] == [
        [0x80, 0x3F, 0x00, 0xC0, 0x80, 0x3F, 0x82, 0x3F], "[1,-2,1,1.015625]",
    ]  # fmt: skip
    assert page.call("tensors", ROUND, "BOOL", "[true, false, 1]")[1] == [[1, 0, 1], "[true,false,true]"]
    assert page.call("tensors", ROUND, "BYTES", '["é", ""]')[1] == [[2, 0, 0, 0, 0xC3, 0xA9, 0, 0, 0, 0], '["é",""]']
    assert page.call("tensors", ROUND, "FP32", '["NaN", NaN, -Infinity]')[1][1] == "[NaN,NaN,-Infinity]"


@pytest.mark.parametrize(
    ("datatype", "values", "message"),
    [
        ("UINT8", "256", "256 is out of range for UINT8."),
        ("INT8", "-129", "-129 is out of range for INT8."),
        ("INT32", "1.5", "1.5 is not an integer."),
        ("UINT64", "-1", "-1 is out of range for UINT64."),
        ("BOOL", "[2]", "2 is not true or false."),
        ("BYTES", "[2]", "2 is not a string: strings stand in double quotes."),
        ("FP32", '["one"]', '"one" is not a number.'),
        ("FP32", "[null]", "null is not a number."),
    ],
)
def test_values_that_a_datatype_lacks(page, datatype, values, message):
    """They are refused, and not made into something else."""
    page.open()
    assert page.call("tensors", ROUND, datatype, values) == ["error", message]


@pytest.mark.parametrize(
    ("wanted", "nested", "shape"),
    [
        ([2, 3], "[[1,2,3],[4,5,6]]", [2, 3]),
        ([2, 3], "[1,2,3,4,5,6]", [2, 3]),
        ([-1, 3], "[1,2,3,4,5,6]", [2, 3]),
        ([-1, -1], "[1,2,3]", [1, 3]),
        ([-1, -1], "[[1],[2],[3]]", [3, 1]),
        ([-1], "[]", [0]),
        ([], "[7]", []),
    ],
)
def test_shapes(page, wanted, nested, shape):
    """A shape is that of the values where it can be, else the last variable dimension takes them all."""
    page.open()
    script = "(m, wanted, nested) => m.fitShape(wanted, JSON.parse(nested))"
    assert page.call("tensors", script, wanted, nested) == ["ok", shape]


@pytest.mark.parametrize(
    ("datatype", "shape", "batches", "found"),
    [
        ("UINT8", [16, 16], False, [16, 16, 1, 1]),
        ("UINT8", [16, 24, 3], False, [16, 24, 3, 1]),
        ("UINT8", [4, 16, 24], False, [16, 24, 4, 1]),
        ("UINT8", [2, 16, 24, 3], False, [16, 24, 3, 2]),
        ("UINT8", [2, 16, 24], True, [16, 24, 1, 2]),
        ("UINT8", [1, 3, 16, 24], True, [16, 24, 3, 1]),
        ("FP32", [16, 16, 1], False, [16, 16, 1, 1]),
        ("INT32", [16, 16], False, None),
        ("UINT8", [4, 4], False, None),
        ("UINT8", [16, 16, 2], False, None),
        ("UINT8", [16], False, None),
        ("UINT8", [0, 16, 16], True, None),
    ],
)
def test_what_is_a_picture(page, datatype, shape, batches, found):
    """Matrices of some size, with one, three or four channels, before or behind, with or without a batch."""
    page.open()
    script = """(m, datatype, shape, batches) => {
        const made = m.pictures(datatype, shape, new Array(m.product(shape)).fill(1), batches);
        return made.length ? [made[0].height, made[0].width, made[0].channels, made.length] : null;
    }"""
    assert page.call("tensors", script, datatype, shape, batches) == ["ok", found]
