"""What knows nothing of jobs: time, retries, texts, documents, plugins. Every package may import it, and it imports
only `penstock.errors`."""
