"""Priority levels: what messages have, and which one without a word (JMS 2.0, 3.4.10; AMQP 1.0, 3.2.1)."""

PRIORITY_DEFAULT = 4
"""Of a message that does not say."""
PRIORITY_MAX = 9
"""The levels are those of JMS, 0 to 9; what AMQP says above counts as this."""
