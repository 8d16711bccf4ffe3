"""Catalogs: namespaces, tables by name, views, and the location of each table."""
