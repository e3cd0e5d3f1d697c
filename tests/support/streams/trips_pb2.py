"""Classes as `protoc` generates them, of two files: `trips.proto` imports `planes.proto`."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

Plane: Any
Trip: Any
"""With `Trip.Leg` in it."""
Other: Any
_FIELD: Any = descriptor_pb2.FieldDescriptorProto


def _planes() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="planes.proto", package="air", syntax="proto3")
    file.message_type.add(name="Plane").field.add(name="tail", number=1, type=_FIELD.TYPE_STRING, label=1)
    return file


def _trips() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="trips.proto", package="air", syntax="proto3")
    file.dependency.append("planes.proto")
    file.message_type.add(name="Other")
    trip = file.message_type.add(name="Trip")
    trip.field.add(name="plane", number=1, type=_FIELD.TYPE_MESSAGE, type_name=".air.Plane", label=1)
    trip.field.add(name="miles", number=2, type=_FIELD.TYPE_INT64, label=1)
    trip.nested_type.add(name="Leg").field.add(name="miles", number=1, type=_FIELD.TYPE_INT64, label=1)
    return file


def _build(file: descriptor_pb2.FileDescriptorProto, own: dict[str, Any]) -> None:
    descriptor = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    builder.BuildMessageAndEnumDescriptors(descriptor, own)
    builder.BuildTopDescriptorsAndMessages(descriptor, __name__, own)


_build(_planes(), globals())
_build(_trips(), globals())
