"""Protobuf messages of the Lance format, generated from ``protos/*.proto`` by ``protos/generate.py``."""
