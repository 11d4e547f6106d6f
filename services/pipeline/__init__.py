"""Committed events in Spark: the source `lockstep`, jobs that make tables of them, and sinks that take each event once."""
