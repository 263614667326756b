"""Triton kernels for CUDA: what a training step would otherwise launch as many small kernels."""
