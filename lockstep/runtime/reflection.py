"""What a gRPC server hosts, with reflection: tools find its services and their messages without having protos/.

Law: whatever a server hosts, reflection tells and health knows by its name; a service is added here or nowhere.
"""

from collections.abc import Iterable

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

from lockstep.runtime.health import Health

_ALPHA, _STABLE = "grpc.reflection.v1alpha", "grpc.reflection.v1"
STABLE_NAME = f"{_STABLE}.ServerReflection"


def add_services(server: grpc.aio.Server, handlers: Iterable[grpc.GenericRpcHandler], health: Health) -> None:
    """Adds the services, `health`, and reflection of all of them. Before the server starts."""
    hosted = (*handlers, health.handlers())
    names = [one.service_name() for one in hosted if isinstance(one, grpc.ServiceRpcHandler)]
    assert len(names) == len(hosted), "every handler is of a service"
    health.know(name for name in names if name)
    _describe_stable()
    told = reflection.aio.ReflectionServicer(
        (*sorted(filter(None, names)), STABLE_NAME, reflection.SERVICE_NAME)
    )
    method = grpc.stream_stream_rpc_method_handler(
        told.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            *hosted,
            # Two names of the same: newer tools ask for the one, older ones for the other.
            *(
                grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
                for name in (STABLE_NAME, reflection.SERVICE_NAME)
            ),
        )
    )


def _describe_stable() -> None:
    """Makes version 1 known to the pool that reflection tells of: grpcio has version 1alpha only, and they say the same."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(STABLE_NAME)
    except KeyError:
        file = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        file.name, file.package = "grpc/reflection/v1/reflection.proto", _STABLE
        for field in (field for message in file.message_type for field in message.field):
            if field.type_name:
                field.type_name = _stable(field.type_name)
        for method in file.service[0].method:
            method.input_type, method.output_type = _stable(method.input_type), _stable(method.output_type)
        pool.AddSerializedFile(file.SerializeToString())


def _stable(name: str) -> str:
    return name.replace(f".{_ALPHA}.", f".{_STABLE}.")
