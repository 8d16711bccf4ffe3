"""Messages of ``file.proto``, by ``protos/generate.py``; the stub says what they have."""

from spark_lance.proto import define

DESCRIPTOR = define("file", globals())
