"""What a schema may become: keys, changes, casts, and what a column was in older versions."""
