"""Experiments: the tables and figures of the paper, as data, runs and a report."""
