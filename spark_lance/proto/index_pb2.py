"""Messages of ``index.proto``, by ``protos/generate.py``; the stub says what they have."""

from google.protobuf import any_pb2
from spark_lance.proto import define, table_pb2

DESCRIPTOR = define("index", globals())
