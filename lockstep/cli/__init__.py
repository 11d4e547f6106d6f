"""The command lockstep."""

import os

# Read by gRPC when it is first imported: no lines of its own among ours, and no handlers around the starting of processes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
