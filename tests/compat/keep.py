"""Keeps what this version writes: `python -m tests.compat.keep`, once for each release, before its commit is tagged.

It writes the folder `tests/compat/versions/<version>/`, with the version of pyproject.toml. For each job of
`tests/compat/kept`, the folder has an archive of everything that the job has left when its run was killed in the
middle: the job root, the streams, and the stores of the host. Beside it is what commands of this version show of it.
The file `commit` names the commit whose code wrote it, so nothing of that may be uncommitted. Tests in
`tests/compat/test_versions.py` let every later version continue the jobs.

Positions, state, messages and batches are the same each time. Random names, and times of files and requests, are not.
A folder of a release stays as it is: `--again` writes that of a version that was not released yet.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.compat.kept.archive import COMMIT, VERSIONS, changes, check_out, head, pack, play, this_version
from tests.compat.kept.play import JOBS

LARGEST = 100_000
"""Bytes of an archive."""


def keep(version: str, *, again: bool) -> None:
    """Write the folder of the version. Exits with the reason if it cannot be written."""
    target = VERSIONS / version
    if target.exists() and not again:
        sys.exit(f"{target} is there already: raise the version, or give --again if it was not released")
    if found := changes():
        sys.exit(f"commit these first, because the folder names the commit that wrote it:\n{found}")
    commit = head()
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
        tree = check_out(commit, Path(scratch) / "tree")
        made = Path(scratch) / "made"
        made.mkdir()
        for name in JOBS:
            folder = Path(scratch) / name
            _checked(play(tree, "write", name, folder))
            pack(folder, made / f"{name}.tar.xz")
            (made / f"{name}.json").write_text(_checked(play(tree, "show", name, folder)), encoding="ascii")
            size = (made / f"{name}.tar.xz").stat().st_size
            print(f"{name}: {size:,} bytes")
            if size > LARGEST:
                sys.exit(f"the archive is larger than {LARGEST:,} bytes")
        (made / COMMIT).write_text(f"{commit}\n", encoding="ascii")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    print(f"{target} has version {version} as of commit {commit}")


def _checked(done: object) -> str:
    code, said, errors = (getattr(done, name) for name in ("returncode", "stdout", "stderr"))
    if code:
        sys.exit(f"{said}{errors}")
    return str(said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Keep what this version of Penstock writes.")
    parser.add_argument("--again", action="store_true", help="replace the folder of a version that was not released")
    keep(this_version(), again=parser.parse_args().again)
