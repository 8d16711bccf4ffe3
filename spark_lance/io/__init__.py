"""Objects on file systems and object stores: ranged reads, whole writes, atomic creation."""
