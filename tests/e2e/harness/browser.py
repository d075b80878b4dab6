# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A real browser, and the page in it as its user sees it. See CONTRIBUTING.md."""

import shutil
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from .waiting import LIMIT_S

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no chromium with its chromedriver here: apt-get install chromium-driver"
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1600",
)  # fmt: skip


# Texts whose contrast with the nearest background is below WCAG's 4.5.
PALE = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
  .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
  .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter((element) => {
  const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!isText || element.disabled || !element.checkVisibility()) return false;
  if (element.closest("svg, noscript, option")) return false;
  const [front, back] = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05) < 4.5;
}).map((element) => element.outerHTML.slice(0, 200));
"""


@contextmanager
def browsing(folder):
    """A browser, without a window, that says what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(LIMIT_S)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page in the browser, as its user sees it."""

    def __init__(self, browser, server, wait_until):
        self._browser, self._server, self.wait = browser, server, wait_until

    def open(self, model="", version=""):
        """Go to a model by its address."""
        self._browser.get("about:blank")
        self._browser.get(f"http://127.0.0.1:{self._server.port}/#/{quote(model, safe='')}/{version}")
        # The page has rendered the model then: it removes the old contents before it asks the server.
        self.wait(lambda: self.texts("h2") == [model] if model else not self.all("#hint"))
        # It has the states of the models, too.
        self.wait(lambda: self.text("#readiness"))
        return self

    def all(self, css):
        return self._browser.find_elements("css selector", css)

    def text(self, css):
        """The text of the one element."""
        (text,) = self.texts(css)
        return text

    def one(self, css):
        (element,) = self.all(css)
        return element

    def texts(self, css):
        script = "return Array.from(document.querySelectorAll(arguments[0]), (each) => each.textContent)"
        return self._browser.execute_script(script, css)

    @contextmanager
    def drawn_anew(self):
        """Wait, at the end, until what shows a model is another than at the beginning."""
        self._browser.execute_script("document.querySelector('main').firstElementChild.id = 'before'")
        yield
        self.wait(lambda: not self.all("#before"))

    def named(self, label):
        """The control with an accessible name."""
        (found,) = [each for each in self.all("input, textarea, select") if each.accessible_name.strip() == label]
        return found

    def type(self, label, text):
        control = self.named(label)
        control.clear()
        control.send_keys(text)
        return self

    def choose(self, label, option):
        (found,) = [each for each in self.named(label).find_elements("css selector", "option") if each.text == option]
        found.click()
        return self

    def run(self):
        """Press the button, and wait for what becomes of it."""
        self.one("button.main").click()
        return self.ended()

    def ended(self):
        self.wait(lambda: self.one("button.main").is_enabled())
        return self.one(".actions [role=status]").text

    def outputs(self):
        """The text for each output, by its name."""
        titles = [text.split()[0] for text in self.texts(".output h4")]
        return dict(zip(titles, self.texts(".output pre"), strict=True))

    def pixel(self, index, x, y):
        """The colour of a picture's pixel."""
        script = """
            const canvas = document.querySelectorAll("canvas")[arguments[0]];
            return Array.from(canvas.getContext("2d").getImageData(arguments[1], arguments[2], 1, 1).data);
        """
        return self._browser.execute_script(script, index, x, y)

    def call(self, module, script, *arguments):
        """The result of a function of one of the page's modules, `m`."""
        script = f"""
            const [arguments_, done] = [Array.from(arguments), arguments[arguments.length - 1]];
            import("/page/{module}.js").then((m) => (({script})(m, ...arguments_.slice(0, -1)))).then(
                (value) => done(["ok", value]), (error) => done(["error", error.message]));
        """
        return self._browser.execute_async_script(script, *arguments)

    def complaints(self):
        """The browser's errors for the page: refused by its policy, not found, not caught."""
        return [entry["message"] for entry in self._browser.get_log("browser") if entry["level"] == "SEVERE"]

    # The whole browser.

    def shape(self, width, height=1600, scheme="light"):
        """Give the window a size, and the user a scheme of colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return self

    def button(self, text):
        """The button, which is displayed, with a text."""
        (found,) = [each for each in self.all("button") if each.is_displayed() and each.text == text]
        return found

    def run_script(self, script, *arguments):
        """The result of a script of the test."""
        return self._browser.execute_script(script, *arguments)

    def is_within(self, width):
        """Whether nothing of the page is wider than its window, which may have a scroll bar."""
        whole, shown = self.run_script(
            "const {scrollWidth, clientWidth} = document.documentElement; return [scrollWidth, clientWidth]"
        )
        return whole == shown and whole <= width

    def pale(self):
        """The texts that can hardly be told from what is behind them."""
        return self._browser.execute_script(PALE)
