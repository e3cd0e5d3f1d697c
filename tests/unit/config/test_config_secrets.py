"""Secrets in a configuration: where they may come from, and that nobody is shown them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.admin.configuration import effective_values
from penstock.base.secrets import is_secret
from penstock.config.load import load_config
from penstock.config.model import JobConfig
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


def test_every_value_may_come_from_a_file_the_environment_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
