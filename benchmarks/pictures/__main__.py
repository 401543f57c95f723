"""``python -m benchmarks.pictures [NAME ...]``: draw all pictures of the site, or only the named ones."""

from __future__ import annotations

import sys

from benchmarks.pictures import curved, explained, guides, results
from benchmarks.pictures.style import Draw, save

PICTURES: dict[str, Draw] = {**explained.PICTURES, **curved.PICTURES, **results.PICTURES, **guides.PICTURES}


def main() -> None:
    """Write the pictures and print their paths."""
    for name in sys.argv[1:] or PICTURES:
        for path in save(name, PICTURES[name]):
            print(path)


if __name__ == "__main__":
    main()
