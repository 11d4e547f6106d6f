"""Unit tests: mirrors the tree; real cores, in-memory edges, nothing patched."""
