"""Ports at which clients look for a cluster unless they are told others."""

FIRST_PORT = 7071
"""Of the first broker on a machine; the others follow."""
AMQP_PORT = 5672
"""Of a proxy, as every AMQP client has it."""
