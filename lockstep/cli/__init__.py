"""The command lockstep."""
