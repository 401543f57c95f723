"""Polyhedra ``lower <= A y <= upper``: few rows, a box and few rows, shared rows, sparse rows, and any rows."""
