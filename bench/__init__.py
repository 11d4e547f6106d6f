"""Benchmarks on real processes: `make bench` and `bench-peers`; `make bench-store` for each other module that is a program."""
