"""Loops over bytes that a compiler does better than numpy: compiled twins of a few kernels, by numba.

numba is optional. Every kernel here has a twin in numpy, beside the encoding it belongs to, which does the
same and is what runs without numba.
"""
