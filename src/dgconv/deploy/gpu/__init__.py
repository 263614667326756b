"""Prepared models for a GPU: the same graph of steps as for the CPU, captured as a CUDA graph for each shape."""
