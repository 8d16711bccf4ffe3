"""Reads and writes in tasks: all that executors load."""
