"""Encoding of Arrow fields to pages."""
