"""The workshop of this repository: run records, the pages written from them and from benchmarks, published weights.

``python -m reproduce`` writes every page anew; ``python -m reproduce --help`` tells what else there is.
"""
