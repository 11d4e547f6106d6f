"""Where rows go, each of them once: after a crash a micro-batch runs again with the same offsets, and a sink knows what it
has."""
