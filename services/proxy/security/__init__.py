"""Who is at the other end of a connection: TLS, SASL, users and what they may do (AMQP 1.0, part 5)."""
