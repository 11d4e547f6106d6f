"""The simulator: whole clusters of the real cores on a virtual clock, network and disk, from one seed (DESIGN 9)."""
