"""Colors of the playground: text and marks can be told from what they stand on, in light and dark."""

import re

import pytest

from tests.playground.browser import PAGE


def palettes():
    """The variables of the light and of the dark scheme."""
    light, dark = re.findall(r":root \{(.*?)\}", (PAGE / "style.css").read_text(), re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#\w{6})\b", text)) for text in (light, dark)]


def luminance(color):
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_contrast_of_text_and_marks(palette):
    for name in ("ink", "soft", "raw", "near", "closed", "accent", "edge"):
        for ground in ("paper", "card"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)


def test_the_page_loads_nothing_from_elsewhere():
    sources = [*PAGE.glob("*.html"), *PAGE.glob("*.css"), *PAGE.glob("js/*.js")]
    text = "".join(source.read_text() for source in sources).replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in text
    assert "https:" not in text
    assert "default-src 'self'" in text
