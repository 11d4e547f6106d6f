"""What surrounds a core in a process: driver, clock, channels, etcd, settings, metrics."""
