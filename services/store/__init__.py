"""The store: one data directory, made durable by group commit."""
