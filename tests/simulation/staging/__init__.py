"""The stage on which scenarios are played: scripts, moments, clients that do what they are told."""
