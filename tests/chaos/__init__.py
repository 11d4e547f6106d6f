"""Kills, stops, cuts and full disks, on real clusters."""
