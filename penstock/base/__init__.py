"""Time, retries, texts, documents, plugins: nothing here knows jobs.

Every package may import it, and it imports only `penstock.errors` and others of its room.
"""
