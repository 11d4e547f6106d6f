"""What a gRPC server hosts, with reflection: tools find its services and their messages without having protos/.

Law: whatever a server hosts, reflection tells; a service is added here or nowhere.
"""

from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection


def add_services(server: grpc.aio.Server, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
    """Adds the services, and reflection of all of them. Before the server starts."""
    hosted = tuple(handlers)
    server.add_generic_rpc_handlers(hosted)
    names = [one.service_name() for one in hosted if isinstance(one, grpc.ServiceRpcHandler)]
    assert len(names) == len(hosted), "every handler is of a service"
    reflection.enable_server_reflection((*sorted(filter(None, names)), reflection.SERVICE_NAME), server)
