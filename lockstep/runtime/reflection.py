"""What a gRPC server hosts, with reflection: tools find its services and their messages without having protos/.

Law: whatever a server hosts, reflection tells; a service is added here or nowhere.
"""

from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection, reflection_pb2


def add_services(server: grpc.aio.Server, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
    """Adds the services, and reflection of all of them. Before the server starts."""
    hosted = tuple(handlers)
    names = [one.service_name() for one in hosted if isinstance(one, grpc.ServiceRpcHandler)]
    assert len(names) == len(hosted), "every handler is of a service"
    told = reflection.aio.ReflectionServicer((*sorted(filter(None, names)), reflection.SERVICE_NAME))
    method = grpc.stream_stream_rpc_method_handler(
        told.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            *hosted,
            grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": method}),
        )
    )
