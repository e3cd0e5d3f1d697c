"""Object stores: local files, services in the cloud, memory; signed and counted on request."""
