"""Repetition and definition levels: nesting to levels and back."""
