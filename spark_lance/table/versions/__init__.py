"""Versions and their names: finding them, tags, branches, clones."""
