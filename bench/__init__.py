"""Benchmarks on a cluster of real processes: `make bench-failover`, `make bench-throughput`, `make bench-memory`."""
