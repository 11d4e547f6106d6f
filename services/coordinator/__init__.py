"""The coordinator of distributed transactions: holds no state that the decision log does not (DESIGN 2, T3, T4)."""
