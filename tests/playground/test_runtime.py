"""The playground without its runtime, and how that is fetched."""

import shutil
import subprocess
import sys

from tests.playground.browser import PAGE, Files, Page


def test_without_the_runtime_the_tab_says_so(browser):
    files = Files(missing="/runtime/")
    page = Page(browser, files.address, "#trained")
    assert page.run("return await playground.models()") is None
    assert "not part of this copy" in page.text("runtime")
    assert page.run("return playground.plane.solution().near.y.length") == 2
    assert len(browser.get_log("browser")) == 1  # the file that is missing
    files.shutdown()


def test_fetching_without_npm_explains_and_succeeds(tmp_path):
    for name in ("fetch_runtime.py", "package.json", "package-lock.json"):
        shutil.copy(PAGE / name, tmp_path)
    command = [sys.executable, tmp_path / "fetch_runtime.py"]
    ran = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert "npm is not installed" in ran.stderr
    assert "resolved" not in (PAGE / "package-lock.json").read_text()
