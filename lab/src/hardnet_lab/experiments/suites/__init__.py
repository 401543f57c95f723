"""Other papers' benchmarks under one command: ``hardnet suite NAME``.

A suite is data: to add one, write its problem (`hardnet_lab.problems.suites`), its `Suite` in `catalog`, and its
published numbers (``experiments/data/suites/NAME.json``).
"""
