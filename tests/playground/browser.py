"""The system's Chromium in front of the playground, served from a folder on this machine."""

import json
import shutil
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "playground"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1280,1500"
).split()
SECONDS = 60
"""How long a page may take on a slow machine before a test gives up."""


class Files(ThreadingHTTPServer):
    """Serves a folder on a free port and remembers what was asked for.

    Args:
        folder: What is served.
        missing: A part of paths that are answered with 404, as if they were not there.
    """

    daemon_threads = True

    def __init__(self, folder=PAGE, missing=None):
        self.asked, self.missing = [], missing
        super().__init__(("127.0.0.1", 0), partial(_Quiet, directory=folder))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}"


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.missing and self.server.missing in self.path:
            self.send_error(404)
        else:
            super().do_GET()

    def log_message(self, *_):
        """The list says it all."""


def chromium(profile, *flags):
    """A headless Chromium with an empty profile; skips by name where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    browser.set_script_timeout(SECONDS)
    return browser


class Page:
    """The playground in a browser, as a reader uses it.

    Args:
        browser: A driver.
        address: Where the page is served.
        tab: ``""`` for the plane, ``"#trained"`` for the models.
    """

    def __init__(self, browser, address, tab=""):
        self.browser, self.address = browser, address
        browser.get("about:blank")  # first, so that an earlier page says nothing more
        for log in ("browser", "performance"):
            browser.get_log(log)  # what earlier pages said
        browser.get(f"{address}/index.html{tab}")
        self._await_program()

    def _await_program(self, seconds=30):
        """Wait until the scripts of the page have written its program: loading them is not part of loading the page."""
        end = time.monotonic() + seconds
        while not self.text("program").strip():
            assert time.monotonic() < end, "the page wrote no program"
            time.sleep(0.05)

    def run(self, script, *arguments):
        """The value of a script, awaited."""
        return self.browser.execute_script(script, *arguments)

    def text(self, identifier):
        """What an element says."""
        return self.run("return document.getElementById(arguments[0]).textContent", identifier)

    def center(self, identifier):
        """Where the mark of a handle is in the window, in whole pixels."""
        script = """
            const mark = document.querySelector(`#${arguments[0]} .mark`);
            mark.scrollIntoView({block: "center"});
            const box = mark.getBoundingClientRect();
            return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];"""
        return self.run(script, identifier)

    def drag(self, identifier, right, down, kind="mouse"):
        """Drag a handle by pixels, in three moves."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder
        from selenium.webdriver.common.actions.pointer_input import PointerInput

        x, y = self.center(identifier)
        actions = ActionBuilder(self.browser, mouse=PointerInput(kind, kind), duration=20)
        pointer = actions.pointer_action
        pointer.move_to_location(x, y).pointer_down()
        for share in (0.3, 0.7, 1.0):
            pointer.move_to_location(x + round(share * right), y + round(share * down))
        pointer.pointer_up()
        actions.perform()

    def press(self, identifier, *keys):
        """Focus an element and press keys, each a chord."""
        from selenium.webdriver.common.by import By

        self.run("document.getElementById(arguments[0]).focus()", identifier)
        for chord in keys:
            self.browser.find_element(By.ID, identifier).send_keys(chord)

    def expect_calm(self):
        """No console message, and no request but to the page's own server."""
        complaints = [entry["message"] for entry in self.browser.get_log("browser")]
        if not (PAGE / "runtime" / "ort.mjs").exists():  # a copy without the runtime: the tab says so
            complaints = [message for message in complaints if "/runtime/ort.mjs" not in message]
        assert not complaints, complaints
        inside = (
            self.address,
            "data:",
            "about:",
            "chrome:",
            "chrome-untrusted:",
        )  # the last two: Chromium's own first page
        elsewhere = [address for address in self.requests() if not address.startswith(inside)]
        assert not elsewhere, elsewhere

    def requests(self):
        """Every address that the browser asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        asked = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in asked]
