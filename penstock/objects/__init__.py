"""Object stores: local files, services in the cloud, memory; signed and counted where that is asked for."""
