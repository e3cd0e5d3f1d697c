"""The local system: a durable, partitioned log in one SQLite file per partition, shared by several processes."""

from penstock.system.local.admin import LocalAdmin
from penstock.system.local.system import LocalReader, LocalSystem, LocalWriter

__all__ = ["LocalAdmin", "LocalReader", "LocalSystem", "LocalWriter"]
