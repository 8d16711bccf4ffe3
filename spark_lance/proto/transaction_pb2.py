"""Messages of ``transaction.proto``, by ``protos/generate.py``; the stub says what they have."""

from google.protobuf import any_pb2
from spark_lance.proto import define, file_pb2, index_pb2, table_pb2

DESCRIPTOR = define("transaction", globals())
