"""Every parser of bytes that come from outside of the process, by name."""

from __future__ import annotations

from tests.support.parsers.between import BETWEEN
from tests.support.parsers.documents import DOCUMENTS
from tests.support.parsers.files import FILES
from tests.support.parsers.lakes import LAKES
from tests.support.parsers.operators import STORES
from tests.support.parsers.parser import Parser
from tests.support.parsers.serdes import READ_BY_SERDES
from tests.support.parsers.spark import SPARK
from tests.support.parsers.stored import STORED
from tests.support.parsers.streams import STREAMS

PARSERS: dict[str, Parser] = {
    **STORED, **BETWEEN, **STREAMS, **READ_BY_SERDES, **STORES, **FILES, **LAKES, **DOCUMENTS, **SPARK
}  # fmt: skip
