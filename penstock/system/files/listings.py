"""The listings of a system's streams."""

from __future__ import annotations

import hashlib

from penstock.objects.open import open_root
from penstock.system.base import check_stream_name
from penstock.system.files.listing import Listing
from penstock.system.files.settings import FilesSettings


class Listings:
    """The listings of a system's streams, as far as they were read."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._objects = open_root(settings.listing, settings.keys)
        self._known: dict[str, Listing] = {}

    def get(self, stream: str) -> Listing:
        if stream not in self._known:
            check_stream_name(stream)
            folder = self._settings.folder(stream).url
            place = hashlib.sha256(folder.encode()).hexdigest()[:16]
            self._known[stream] = Listing(self._objects, f"{self._settings.name}/{stream}/{place}", folder)
        return self._known[stream]

    def close(self) -> None:
        self._objects.close()
