"""AMQP 1.0 messages as Lockstep keeps and reads them, without a protocol engine: sections and JMS selectors."""
