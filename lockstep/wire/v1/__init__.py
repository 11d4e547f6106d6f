"""Version 1 of the wire protocol, generated from protos/lockstep/wire/v1."""
