"""What the proxy decides: pure."""
