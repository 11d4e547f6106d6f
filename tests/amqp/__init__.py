"""AMQP 1.0 for tests of the proxy: a codec and a client that send what engines do not, and a proxy without brokers."""
