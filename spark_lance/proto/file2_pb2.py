"""Messages of ``file2.proto``, by ``protos/generate.py``; the stub says what they have."""

from google.protobuf import empty_pb2
from spark_lance.proto import define

DESCRIPTOR = define("file2", globals())
