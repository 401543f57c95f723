"""Hooks of MkDocs: pictures say their sizes, so that a page does not move while it loads; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PICTURE = re.compile(r'(<img [^>]*?src="[^"#]*?(pictures/[\w-]+\.svg)[^"]*")')
BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def on_config(config: Any) -> Any:
    """Without a public address there is no source to link to."""
    if not config["repo_url"]:
        config["edit_uri"] = None
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page on contributing is the file beside the folder of the site, whose links begin with that folder."""
    if page.file.src_uri != "contributing.md":
        return markdown
    return (Path(config["docs_dir"]).parent / "CONTRIBUTING.md").read_text().replace("](docs/", "](")


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
