"""Every picture of the README and the site, from ``results/`` and by the library: ``python -m benchmarks.pictures``.

Each is written twice, ``docs/pictures/NAME-light.svg`` and ``NAME-dark.svg``; the pages show the one that fits.
"""
