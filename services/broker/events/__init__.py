"""The Events service of a broker: reading its store's journal, batches on the wire, plans (DESIGN 7)."""
