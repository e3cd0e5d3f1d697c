"""The container's part of standbys: a service that keeps the copies up to date."""
