"""Steps along a Hilbert curve: neighbours on the curve are neighbours in all dimensions.

A file holds a stretch of the curve, so its rows are in a small box. On a Z-curve a stretch can jump, and then
the box of a file is large. The position of a cell is computed from the highest bits of its coordinates to the
lowest ones. A state says how the curve is turned inside of the current cell (C. Hamilton, Compact Hilbert
Indices, 2006).
"""

from __future__ import annotations

# States of curves with up to four dimensions fit into these bits.
STATE_BITS = 6
MAX_DIMENSIONS = 4


def hilbert_steps(dimensions: int) -> list[int]:
    """Return the steps of the curve, for each state and each sub-cell: `state * 2**dimensions + cell`.

    A step is `digit << STATE_BITS | next state`. The digits from the highest to the lowest bits are the
    position on the curve. The first state is 0. Bit `i` of a cell is the bit of coordinate `i`.

    Args:
        dimensions: the number of coordinates, from 1 to `MAX_DIMENSIONS`.
    """
    size = 1 << dimensions
    steps = []
    for entry in range(size):
        for direction in range(dimensions):
            for cell in range(size):
                corner = _rotate_right(cell ^ entry, direction + 1, dimensions)
                digit = _gray_inverse(corner)
                next_entry = entry ^ _rotate_left(_entry(digit), direction + 1, dimensions)
                next_direction = (direction + _direction(digit, dimensions) + 1) % dimensions
                steps.append(digit << STATE_BITS | (next_entry * dimensions + next_direction))
    return steps


def _gray(number: int) -> int:
    return number ^ (number >> 1)


def _gray_inverse(code: int) -> int:
    result = 0
    while code:
        result ^= code
        code >>= 1
    return result


def _entry(digit: int) -> int:
    """Return the corner at which the curve enters a sub-cell."""
    return _gray(2 * ((digit - 1) // 2)) if digit else 0


def _direction(digit: int, dimensions: int) -> int:
    """Return the dimension in which the curve crosses a sub-cell."""
    if not digit:
        return 0
    number = digit if digit % 2 else digit - 1
    return _trailing_ones(number) % dimensions


def _trailing_ones(number: int) -> int:
    count = 0
    while number & 1:
        count += 1
        number >>= 1
    return count


def _rotate_right(value: int, places: int, dimensions: int) -> int:
    places %= dimensions
    return (value >> places | value << (dimensions - places)) & ((1 << dimensions) - 1)


def _rotate_left(value: int, places: int, dimensions: int) -> int:
    return _rotate_right(value, dimensions - places % dimensions, dimensions)
