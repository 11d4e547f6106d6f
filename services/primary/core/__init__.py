"""The decisions of services.primary: pure, driven by inputs, answering with effects."""
