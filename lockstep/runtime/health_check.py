"""`python -m lockstep.runtime.health_check ADDRESS [NAME]`: exit status 0 if what listens there says that it serves.

Run every few seconds in each container: it imports gRPC and nothing else.
"""

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

CHECK_SECONDS = 2.0
_METHOD = "/grpc.health.v1.Health/Check"


def ask(address: str, name: str = "", seconds: float = CHECK_SECONDS) -> str:
    """What it says of itself: "SERVING", or why not. `address`: host:port or unix:path; `name` "": the whole process."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            _METHOD,
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        try:
            response = check(HealthCheckRequest(service=name), timeout=seconds)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return str(HealthCheckResponse.ServingStatus.Name(response.status))


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status; 2 for arguments that are none."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m lockstep.runtime.health_check ADDRESS [NAME]", file=sys.stderr)
        return 2
    address, name = [*arguments, ""][:2]
    said = ask(address, name)
    print(said)
    return 0 if said == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
