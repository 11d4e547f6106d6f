"""The client: asyncio sessions that survive failover, with a blocking façade."""
