"""The public name of `ForwardingStore`, the base of object stores that fail, wait or watch."""

from penstock.objects.forwarding import ForwardingStore

__all__ = ["ForwardingStore"]
