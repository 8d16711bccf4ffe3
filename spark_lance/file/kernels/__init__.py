"""Compiled versions (numba) of a few kernels for which compiled loops are faster than numpy.

numba is optional. Every kernel has an equivalent numpy version in the module of its encoding, which is used
without numba.
"""

from __future__ import annotations

# Constants that kernels share with their callers.
#
# Kernels return these for damaged input: a string ends inside an FSST escape, an FSST code has no symbol,
# or a position is not inside the array.
CUT, NO_SYMBOL, OUTSIDE = -1, -2, -3

# The length of a missing FSST symbol: the only bit that no valid length has.
FSST_MISSING = 128
# Bytes after the output that writing eight codes at once may overwrite.
FSST_ROOM = 8 * FSST_MISSING + 8
