"""One Chromium and one server for all tests of the playground."""

import pytest

from tests.playground.browser import Files, Page, chromium


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """A headless Chromium; skips where there is none."""
    started = chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture(scope="package")
def files():
    """The playground's folder, served."""
    server = Files()
    yield server
    server.shutdown()


@pytest.fixture
def page(browser, files):
    """The page, freshly loaded; afterwards it has complained of nothing and asked for nothing but its own files."""
    opened = Page(browser, files.address)
    yield opened
    opened.expect_calm()
