"""The primary of a resource set: owns the log, decides transactions, serves clients and backups."""
