"""Coordinators over a simulated decision log, participants and clients: their own small world, on the simulator's clock."""
