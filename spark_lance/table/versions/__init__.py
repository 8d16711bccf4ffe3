"""Versions and their names: finding, publishing and cleaning them up; tags and branches."""
