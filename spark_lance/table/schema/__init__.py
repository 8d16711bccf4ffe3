"""Schema evolution: keys, changes, casts, and the columns of older versions."""
