"""Secrets in a configuration, and files of properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.configuration import effective_values
from penstock.base.secrets import is_secret
from penstock.config import keys as config_keys
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.sources import PropertiesError, parse_properties
from penstock.errors import ConfigError

HIDDEN = "hunter2"


def load(*assignments: str, **overrides: Any) -> JobConfig:
    return load_config(
        overrides=overrides.get("given"),
        assignments=assignments,
        environ={},
        default_job_name="a",
        file=overrides.get("file"),
    )


def refusal(*assignments: str, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*assignments, **overrides)
    assert HIDDEN not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.azure.account.key.here.dfs.core.windows.net",
        "systems.lake.private.key",
        "systems.lake.private_key",
        "app.api.key",
        "app.apiKey",
        "app.db.passwd",
        "app.db.pwd",
        "app.connection.string",
        "app.connectionString",
        "systems.kafka.basic.auth.user.info",
        "systems.kafka.schema.registry.basic.auth.user.info",
        "systems.kafka.consumer.ssl.key.password",
        "spark.authenticate.secret",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.sas.token",
        "systems.kafka.consumer.sasl.jaas.config",
        "job.root.key",
    ],
)
def test_keys_of_secrets(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "job.root",
        "task.commit.ms",
        "stores.keys.key.serde",
        "streams.kafka.in.samza.key.serde",
        "app.monkey",
        "app.sasha",
        "systems.lake.path",
        "spark.sql.shuffle.partitions",
        "app.keyboard.layout",
    ],
)
def test_keys_of_others(key: str) -> None:
    assert not is_secret(key)


def test_values_may_come_from_files_variables_or_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{HIDDEN}\n")
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", HIDDEN)
    config = load(
        f"spark.authenticate.secret=file:{tmp_path}/key",
        "spark.hadoop.fs.s3a.secret.key=env:PENSTOCK_TEST_SECRET",
        f"spark.a.password=cmd:cat '{tmp_path}/key'",
        'spark.jaas=user="u" password="${env:PENSTOCK_TEST_SECRET}";',
        "app.note=${cmd:echo hunter2} and ${env:PENSTOCK_TEST_SECRET}",
        f"job.root=file://{tmp_path}",
    )
    assert config.spark == {
        "spark.authenticate.secret": HIDDEN,
        "spark.hadoop.fs.s3a.secret.key": HIDDEN,
        "spark.a.password": HIDDEN,
        "spark.jaas": f'user="u" password="{HIDDEN}";',
    }
    assert config.job.root == f"file://{tmp_path}", "a URL is no reference"
    shown = {each.key: each.value for each in effective_values(config, None)}
    assert shown["app.note"] == shown["spark.jaas"] == "(hidden)"
    assert HIDDEN not in repr((shown, config))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("file:/no/such/file", "the file `/no/such/file` cannot be read: No such file"),
        ("env:PENSTOCK_NO_SUCH", "the environment has no variable `PENSTOCK_NO_SUCH`"),
        ("cmd:false", "the command `false` ended with status 1"),
        ("cmd:no-such-command-here", "the command `no-such-command-here` cannot be run"),
        ("cmd:'", "cannot be run: No closing quotation"),
        ("cmd:head -c 2000000 /dev/zero", "has more than 1048576 bytes"),
        ("cmd:printf '\\377'", "is not UTF-8"),
    ],
)
def test_a_source_that_fails(value: str, says: str) -> None:
    assert says in refusal(f"spark.a.password={value}")


def test_a_command_runs_only_if_its_value_counts(tmp_path: Path) -> None:
    config = load("spark.a.password=cmd:echo b", given={"spark.a.password": f"cmd:touch {tmp_path}/ran"})
    assert config.spark["spark.a.password"] == "b"
    assert not list(tmp_path.iterdir())


@pytest.mark.attack
def test_the_command_line_takes_no_secret() -> None:
    said = refusal(f"spark.authenticate.secret={HIDDEN}")
    assert "every user of this machine can read what is on a command line" in said
    assert "file:PATH" in said
    assert "env:NAME" in said
    assert "cmd:COMMAND" in said
    assert load("spark.authenticate.secret=", given={"spark.authenticate.secret": HIDDEN}).spark


@pytest.mark.attack
@pytest.mark.parametrize(
    "assignment",
    [f"spark.password:{HIDDEN}", f"spark.password {HIDDEN}", f"password:{HIDDEN}", f" {HIDDEN}", f"={HIDDEN}"],
)
def test_a_secret_with_the_wrong_sign_is_not_shown(assignment: str) -> None:
    assert "expected `-c key=value`" in refusal(assignment)


@pytest.mark.attack
def test_a_value_that_does_not_fit_is_not_shown_where_it_is_secret(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"spark.a.password: [{HIDDEN}, b]\ntask.commit.ms: ${{env:PENSTOCK_TEST_SECRET_MS}}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PENSTOCK_TEST_SECRET_MS", HIDDEN)
        said = refusal(file=file)
    assert "`task.commit.ms` = `...`" in said


def test_no_password_of_a_url_is_shown_whatever_the_key(tmp_path: Path) -> None:
    url = f"s3://me:{HIDDEN}@bucket/jobs"
    given = {"job.root": url, "systems.lake.samza.factory": "local", "systems.lake.path": f"/tmp/x?sig={HIDDEN}"}
    given |= {"app.url": url, "app.list": f"a,{url}", "spark.hadoop.proxy": f"http://me:{HIDDEN}@proxy:8080"}
    given |= {f"app.{name}": HIDDEN for name in ("auth", "pass", "jwt", "dsn", "private", "webhook", "kms.key")}
    config = load(given=given)
    shown = {each.key: each.value for each in effective_values(config, None)}
    assert HIDDEN not in repr(shown)
    assert shown["job.root"] == "s3://...@bucket/jobs"
    assert shown["app.url"] == "s3://...@bucket/jobs"
    assert config.job.root == url, "the job itself has the whole value"


def test_no_password_of_a_url_is_in_a_refusal() -> None:
    url = f"s3://me:{HIDDEN}@bucket/jobs"
    said = refusal(given={"task.commit.ms": url, "stores.a.backup.factories": [url], "job.root.url": url})
    assert "s3://...@bucket/jobs" in said


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b ", {"a": "b "}),
        ("a b c", {"a": "b c"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("# x\n! y \\\na=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=\\:\\ b=c", {"a=: b": "c"}),
        ("a=b\\\n  # c", {"a": "b# c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\n c", {"a": "b\\c"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=\\\n\\\n  b", {"a": "b"}),
        ("\\\n\na=b", {"": "", "a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("a=\\u00e9\\t\\q\\ud83d\\ude00", {"a": "é\tq😀"}),
        ("=b", {"": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\x85y\u2028z", {"a": "x\x85y\u2028z"}),
        ("", {}),
    ],
)
def test_properties(text: str, entries: dict[str, str]) -> None:
    assert {entry.key: entry.value for entry in parse_properties(text)} == entries


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\ud83d", "\\u"])
def test_broken_escapes(text: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        parse_properties(f"x=y\n{text}")


def test_lines_of_properties() -> None:
    entries = parse_properties("\n# c\na=\\\n b\n\nc=d\n")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 3), ("c", 6)]


def store(text: str, *, is_key: bool, wrap: bool) -> str:
    """The text in the form of java.util.Properties.store; with `wrap` each character on its own line."""
    out = []
    for index, char in enumerate(text):
        if char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif char in "\\=:#!" or (char == " " and (is_key or index == 0 or wrap)):
            out.append("\\" + char)
        elif not " " <= char <= "~":
            data = char.encode("utf-16-be")
            out += ["".join(f"\\u{data[at] << 8 | data[at + 1]:04x}" for at in range(0, len(data), 2))]
        else:
            out.append(char)
    return ("\\\n \t" if wrap else "").join(out)


@given(
    entries=st.dictionaries(st.text(min_size=1), st.text()),
    separator=st.sampled_from(["=", ":", " = ", "\t:\f", " "]),
    end=st.sampled_from(["\n", "\r", "\r\n", "\n\n# comment \\\n"]),
    wrap=st.booleans(),
)
def test_properties_round_trip(entries: dict[str, str], separator: str, end: str, wrap: bool) -> None:
    text = "".join(
        f"{store(key, is_key=True, wrap=wrap)}{separator}{store(value, is_key=False, wrap=wrap)}{end}"
        for key, value in entries.items()
    )
    assert {entry.key: entry.value for entry in parse_properties(text)} == entries


@given(st.text())
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        lines = [entry.line for entry in parse_properties(text)]
    except PropertiesError as error:
        lines = [error.line]
    assert all(line >= 1 for line in lines)


@given(st.text(alphabet="abst.orejk_ ", max_size=40))
def test_any_key_is_found_or_has_a_hint_that_is_known(text: str) -> None:
    if config_keys.find(text) is None:
        near = config_keys.nearest(text)
        assert near is None or config_keys.find(near) is not None
