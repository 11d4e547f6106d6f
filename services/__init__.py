"""The programs of a cluster: python -m services.<name>."""
