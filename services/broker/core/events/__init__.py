"""Committed events, pure: from the frames of a log to transactions of events, and the plan over several sets (DESIGN 7)."""
