"""The backup of a resource set: follows the log, acknowledges what is durable, can be promoted."""
