"""The decisions of services.backup: pure, driven by inputs, answering with effects."""
