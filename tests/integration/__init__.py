"""Separate processes over gRPC, and a real etcd."""
