"""Benchmarks as containers: plan a benchmark in-process, serve its servers in Docker, run its tasks.

Importing this package changes nothing in the process and imports nothing heavy.
"""

__version__ = "0.1.0"
