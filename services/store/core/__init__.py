"""The decisions of services.store: pure, driven by inputs, answering with effects."""
