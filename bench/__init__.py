"""Benchmarks on real processes: `make bench-failover`, `-joining`, `-memory`, `-recovery`, `-store`, `-throughput`."""
