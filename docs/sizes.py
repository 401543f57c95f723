"""A hook of MkDocs: every picture says its size, so that a page does not move while it loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PICTURE = re.compile(r'(<img [^>]*?src="[^"#]*?(pictures/[\w-]+\.svg)[^"]*")')
BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """Put the width and height of its drawing into each picture, which the page scales down where it is narrow."""
    folder = Path(config["docs_dir"])

    def sized(match: re.Match[str]) -> str:
        box = BOX.search((folder / match[2]).read_text())
        if box is None:
            return match[1]
        width, height = (round(4 / 3 * float(side)) for side in box.groups())
        return f'{match[1]} width="{width}" height="{height}"'

    return PICTURE.sub(sized, html)
