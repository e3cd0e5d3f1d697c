"""The base of object stores that fail, wait or watch; see `ForwardingStore`."""

from penstock.metadata.forwarding_store import ForwardingStore

__all__ = ["ForwardingStore"]
