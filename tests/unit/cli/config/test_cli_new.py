"""`penstock new`, and the project that it makes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock import __version__
from penstock.admin.configuration import check_configuration
from penstock.cli.config import make_project
from penstock.cli.shared.application import load_application
from penstock.config.load import load_config
from penstock.errors import ConfigError
from tests.support.tools.cli import call
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT

NAME = "shop-totals"
PAGE = (ROOT / "docs/projects.md").read_text("utf-8")
COMMANDS = blocks(PAGE, "sh")[0].splitlines()
FILES = [
    *(
        ".dockerignore",
        ".gitignore",
        "Dockerfile",
        "README.md",
        "build.lock",
        "data/orders/first.jsonl",
        "entrypoint.sh",
        "job.py",
    ),
    *("job.yaml", "requirements.txt", "test_job.py"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, which is the working directory."""
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    out, said = call("new", NAME)
    assert said.startswith(f"made the folder {NAME}")
    assert out.splitlines() == COMMANDS[2:5]
    monkeypatch.chdir(NAME)
    return tmp_path / NAME


def instructions(dockerfile: str) -> list[str]:
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", "").splitlines()


def test_a_project_has_all_files_and_no_placeholder(project: Path) -> None:
    assert sorted(str(each.relative_to(project)) for each in project.rglob("*") if each.is_file()) == sorted(FILES)
    assert not [name for name in FILES if re.search(r"@\w+@", (project / name).read_text())]
    assert f"penstock-streams=={__version__}\n" in (project / "requirements.txt").read_text()
    assert oct(project.stat().st_mode & 0o777) == oct(0o777 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_page_and_the_readme_show_the_project(project: Path) -> None:
    job, test = blocks(PAGE)
    assert (project / "job.py").read_text() == job
    assert (project / "test_job.py").read_text() == test
    assert blocks((project / "README.md").read_text(), "sh")[0].splitlines() == COMMANDS[3:5]
    assert f"    {COMMANDS[4]}\n" in job


def test_its_own_test_passes(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_its_configuration_fits_its_job_with_each_commented_key_as_well(project: Path) -> None:
    text = (project / "job.yaml").read_text()
    app = load_application("job.py:app").app
    others = re.sub(r"^systems.*\n", "", text, flags=re.MULTILINE)
    others = re.sub(r"^# (?=\w+\.[\w.]+: )", "", others, flags=re.MULTILINE)
    for each in (text, others):
        keys = dict(line.split(": ", 1) for line in each.splitlines() if re.match(r"\w+\.[\w.]+: ", line))
        (project / "tried.yaml").write_text(yaml.safe_dump(keys))
        loaded = load_config(project / "tried.yaml", default_job_name=app.name)
        check_configuration(app.graph(), loaded)
        assert loaded.job.name == NAME
    assert len(keys) == 7, "of Kafka, the root, exactly-once output and the dashboard"


def test_its_image_is_that_of_the_manifests_with_its_job(project: Path) -> None:
    """Base, Java, user, folders and variables: `deploy/kubernetes` is tested against the schemas."""
    ours, theirs = (instructions(file.read_text()) for file in (project / "Dockerfile", MANIFESTS / "Dockerfile"))
    copied = [line for line in theirs if line.startswith("COPY")]
    second = theirs.index("FROM ${BASE}")
    packages = [line for line in theirs[:second] if not line.startswith(("COPY", "RUN pip"))]
    assert [line for line in [*packages, *theirs[second:]] if line not in [*ours, *copied]] == []
    assert copied[-1].replace("penstock/cli/project/", "") in ours


MANIFESTS = ROOT / "deploy" / "kubernetes"


def test_its_image_copies_what_exists_and_nothing_that_is_ignored(project: Path) -> None:
    lines = instructions((project / "Dockerfile").read_text())
    sources = [each for line in lines if line.startswith("COPY") for each in line.split()[1:-1] if "--" not in each]
    context = [each for each in sources if not each.startswith("/")]
    missing = [each for each in context if "*" not in each and not (project / each).exists()]
    assert missing == ["requirements.lock"], "who builds an image makes it first, and without it none is built"
    allowed = [line.removeprefix("!") for line in (project / ".dockerignore").read_text().splitlines()]
    assert allowed == ["*", *sorted(context)]
    assert lines[-1] == 'CMD ["run", "/app/job.py:app", "--config", "/app/job.yaml"]'


def test_its_image_installs_nothing_without_a_hash(project: Path) -> None:
    text = (project / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*?)(?: && |$)", "\n".join(instructions(text)), re.MULTILINE)
    assert len(installs) == 2
    assert all(each.startswith("--require-hashes") for each in installs)
    assert "--no-build-isolation" in installs[1], "what builds a package would have no hash"
    for page in (text, (project / "README.md").read_text(), PAGE):
        assert "uv pip compile --generate-hashes" in page
    assert "imagetools inspect" in text
    assert not re.search(r"sha256:[0-9a-f]", text), "nobody knows which base is trusted"


@pytest.mark.parametrize("name", ["Shop", "1st", "a b", "a--b", "a-", "-a", "a/b", "..", "", "a_b", "a" * 41, "ä"])
def test_a_name_that_fits_no_image_or_job_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be the name of a project.*`shop-totals`"):
        make_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_is_one_of_a_job(tmp_path: Path) -> None:
    make_project("a" * 40, tmp_path)
    assert f'StreamApplication("{"a" * 40}")' in (tmp_path / ("a" * 40) / "job.py").read_text()


def test_an_empty_folder_is_filled_and_another_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    call("new", NAME)
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    error = call("new", NAME, status=2)[1]
    assert "there is a" in error
    assert "already" in error
    Path("file").touch()
    assert "already" in call("new", "file", status=2)[1]
    Path("file").unlink()
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


def test_a_parent_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no/shop-totals` cannot be made: No such file"):
        make_project(NAME, tmp_path / "no")


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_half_project(tmp_path: Path) -> None:
    """It is killed at each file in turn: under the name of the project is nothing, until there is all of it."""
    for count in range(len(FILES) + 1):
        parent = tmp_path / str(count)
        parent.mkdir()
        done = subprocess.run([sys.executable, "-c", KILLED, str(parent), str(count)], check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert not (parent / NAME).exists()
        make_project(NAME, parent)
        assert len([each for each in (parent / NAME).rglob("*") if each.is_file()]) == len(FILES)


KILLED = f"""
import os, signal, sys
from pathlib import Path
from penstock.cli.config import make_project

left = int(sys.argv[2])

def kill(*args, **kwargs):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return write(*args, **kwargs)

write, Path.write_text, Path.rename = Path.write_text, kill, kill
make_project("{NAME}", Path(sys.argv[1]))
"""
