"""Thin adapters to other frameworks, one file each: ``lightning``, ``sklearn``, ``gymnasium``.

``import hardnet`` imports none of them; each asks for its extra by name where the framework is missing.
"""
