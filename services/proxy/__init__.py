"""The AMQP 1.0 proxy (DESIGN 2, 6): any AMQP client on one side, the brokers over gRPC on the other."""
