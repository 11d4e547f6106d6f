"""The wire protocol."""
