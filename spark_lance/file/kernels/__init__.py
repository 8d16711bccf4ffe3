"""Loops over bytes that a compiler does better than numpy: compiled twins of a few kernels, by numba.

numba is optional. Every kernel here has a twin in numpy, beside the encoding it belongs to, which does the
same and is what runs without numba.
"""

from __future__ import annotations

__all__ = ["CUT", "FSST_MISSING", "FSST_ROOM", "NO_SYMBOL", "OUTSIDE"]

# What callers of kernels and the kernels agree on.
#
# What kernels return for damaged input: a string ends inside an FSST escape, an FSST code has no symbol,
# or a position is not inside the array.
CUT, NO_SYMBOL, OUTSIDE = -1, -2, -3

# The length of an FSST symbol that does not exist. It has the only bit that no true length has.
FSST_MISSING = 128
# Bytes behind the output that eight codes at once, one after the other, may touch.
FSST_ROOM = 8 * FSST_MISSING + 8
