"""Messages of ``encodings21.proto``, by ``protos/generate.py``; the stub says what they have."""

from spark_lance.proto import define

DESCRIPTOR = define("encodings21", globals())
