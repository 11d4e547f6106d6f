"""The tests. What they share is in their own folder, never in the product."""
