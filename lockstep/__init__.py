"""Lockstep: a highly available, transactional message broker."""
