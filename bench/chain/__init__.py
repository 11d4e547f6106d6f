"""A resource set in one process, for counting what it executes: clients, a primary, two backups, three stores."""
