"""gRPC between processes, on the event loop itself: HTTP/2 by `h2`, the bytes of messages past it.

The wire is gRPC's, so any gRPC client or server is a peer; what is here costs a message a fifth of what grpcio's asyncio library
costs it, which takes two threads and four turns of the event loop for each (docs/performance-notes.md).
"""
