"""Loops over bytes that a compiler does better than numpy: compiled twins of a few kernels, by numba.

numba is optional. Every kernel here has a twin in numpy, in the module of its encoding. The twin does the
same and runs where numba is missing.
"""

from __future__ import annotations

# Constants that kernels share with their callers.
#
# Kernels return these for damaged input: a string ends inside an FSST escape, an FSST code has no symbol,
# or a position is not inside the array.
CUT, NO_SYMBOL, OUTSIDE = -1, -2, -3

# The length of an FSST symbol that does not exist. It has the only bit that no true length has.
FSST_MISSING = 128
# Bytes behind the output that eight codes at once, one after the other, may touch.
FSST_ROOM = 8 * FSST_MISSING + 8
