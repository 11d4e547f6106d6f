"""The decisions of services.broker: pure, driven by inputs, answering with effects."""
