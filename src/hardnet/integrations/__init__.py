"""Thin adapters to other frameworks, one file each: ``lightning``, ``sklearn``, ``gymnasium``.

``import hardnet`` imports none of them; where the framework is missing, the error names the extra to install.
"""
