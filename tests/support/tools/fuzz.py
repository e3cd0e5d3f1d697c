"""Damages what Penstock reads, guided by the code that runs: `python -m tests.support.tools.fuzz CODEC [OPTION...]`.

Without arguments, it names the codecs: those of `tests/property/test_damaged_messages.py`, whose tests damage them
blindly and for a short time. Options are those of libFuzzer, such as `-max_total_time=600`, or a folder for what it
finds. It needs `atheris` (`pip install atheris`), which no other test does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path


def main(arguments: list[str]) -> None:
    if not arguments:
        from tests.property.test_damaged_messages import CODECS

        print("\n".join(CODECS))
        return
    try:
        import atheris
    except ImportError:
        sys.exit("this needs `atheris`: pip install atheris")
    with atheris.instrument_imports(include=["penstock"]):
        from tests.property.test_damaged_messages import CODECS
    name, *options = arguments
    if name not in CODECS:
        sys.exit(f"there is no codec `{name}`: without arguments, this names them")
    with tempfile.TemporaryDirectory() as corpus:
        write_corpus(Path(corpus), CODECS[name].whole)
        folders = [each for each in options if not each.startswith("-")]
        flags = [each for each in options if each.startswith("-")]
        atheris.Setup([sys.argv[0], *flags, *folders, corpus], CODECS[name].read_or_refuse)
        atheris.Fuzz()


def write_corpus(folder: Path, whole: Iterable[bytes]) -> None:
    """Write the valid messages that it begins with."""
    for number, data in enumerate(whole):
        (folder / f"{number}").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
