"""The local system: a durable, partitioned log in one SQLite file per partition, shared by several processes."""

from penstock.system.local.admin import LocalAdmin
from penstock.system.local.reader import LocalReader
from penstock.system.local.system import LocalSystem
from penstock.system.local.writer import LocalWriter

__all__ = ["LocalAdmin", "LocalReader", "LocalSystem", "LocalWriter"]
