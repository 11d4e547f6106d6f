"""Other brokers and a database, measured in the same run on the same disk."""
