"""The broker: hosts the primary or the backup of each resource set, as the cluster map says."""
