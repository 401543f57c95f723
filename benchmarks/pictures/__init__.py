"""Every picture of the README and the site, from ``results/`` and the library: ``python -m benchmarks.pictures``.

Each is written twice, ``docs/pictures/NAME-light.svg`` and ``NAME-dark.svg``; the pages show the one for their theme.
"""
