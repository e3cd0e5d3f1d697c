"""Files of others in a folder. Once Penstock has written to a folder, its readers get what the manifests name: files of
others would be hidden. So Penstock writes to no folder that has some."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError
from penstock.system.files.folders import Folder
from penstock.system.files.listing import Listing
from penstock.system.files.manifests import MANIFESTS, is_written

_SHOWN = 5


def check_no_others(title: str, folder: Folder, listing: Listing) -> None:
    """Raise ConfigError if a folder without manifests has data files, or had some when it was listed: others write it.

    Args:
        title: the stream's name.
        folder: its folder.
        listing: its listing, which was read.
    """
    found = [file.path for file in folder.files(with_empty=True)]
    listed = listing.of_others()
    if not found and not listed:
        return
    what = "holds" if found else "held"
    paths = found or listed
    raise ConfigError(
        f"Penstock cannot write to `{title}`: its folder `{folder.url}` {what} {counted(len(paths), 'file')} that "
        f"Penstock has not written ({_shown(paths)}), and is read as it is. Nothing was written. Name another stream, "
        "whose folder is empty or does not exist; `penstock stream replay --to STREAM` puts dead letters there"
    )


def check_none_ignored(title: str, folder: Folder) -> None:
    """Raise IncompatibleError if a folder that Penstock writes has files of others as well.

    Args:
        title: the stream's name.
        folder: its folder.
    """
    others = [file.path for file in folder.files(with_empty=True) if not is_written(file.path)]
    if others:
        raise IncompatibleError(
            f"`{title}` is a folder that Penstock writes, whose readers get what its manifests name, and "
            f"`{folder.url}` holds {counted(len(others), 'file')} of others as well ({_shown(others)}), which nobody "
            "would get. Move these to another folder, and read it there. Or, if you need nothing of what "
            f"Penstock wrote there, delete `{MANIFESTS}` and the files `part-*` that it names"
        )


def check_listed(title: str, folder: Folder, listing: Listing) -> None:
    """Raise IncompatibleError if others wrote a folder when it was listed, and Penstock writes it now.

    Args:
        title: the stream's name.
        folder: its folder.
        listing: its listing, which was read.
    """
    listed = [own[-1].path for own in listing.files if own and not is_written(own[-1].path)]
    if listed:
        check_none_ignored(title, folder)
        raise IncompatibleError(
            f"`{title}` was listed with files that Penstock has not written ({_shown(listed)}), and Penstock writes "
            f"its folder `{folder.url}` now. Name another `systems.{title.partition('.')[0]}.listing` to read what "
            "Penstock writes there"
        )


def _shown(paths: Sequence[str]) -> str:
    text = ", ".join(f"`{path}`" for path in paths[:_SHOWN])
    return text if len(paths) <= _SHOWN else f"{text}, ..."
