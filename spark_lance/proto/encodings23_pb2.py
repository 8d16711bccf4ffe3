"""Messages of ``encodings23.proto``, by ``protos/generate.py``; the stub says what they have."""

from spark_lance.proto import define, encodings21_pb2

DESCRIPTOR = define("encodings23", globals())
