"""Secrets in texts that people are shown: whatever the name, the form of the URL, and the text around it."""

from __future__ import annotations

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.secrets import is_secret, without_secrets
from penstock.config.keys import find
from penstock.errors import ConfigError, RetryableError
from penstock.host.log_lines import LineFormatter, PassedOn
from penstock.job.shown import Failure

pytestmark = pytest.mark.attack

SECRET = "hunter2"
NAMES = """auth basic.auth basic_auth basicAuth http-auth auth.header authorization pass db.pass dbPass user_pass pwd
 db_pwd PWD pw passwd password passphrase passcode jwt jwt.assertion dsn sentry.dsn SENTRY_DSN private webhook
 slack.webhook webhook.url webhookUrl kms.key kmsKey kms_key api-key apikey apiKey x-api-key access.key accessKey
 account.key AccountKey private.key privateKey signing.key encryption.key master.key root.key root.key.previous
 license.key ssh.key tls.key client.key token access_token refreshToken token2 secret client.secret clientSecret
 credentials sasl.jaas.config connection.string ConnectionString sas sasToken cookie session.cookie signature sig otp
 pin pat hmac bearer keystore.key password.1 password.old""".split()  # noqa: SIM905
OTHERS = """key keys job.root path url host port user username bootstrap.servers author authority auth.type auth.url
 oauth.scope authenticate tls.key.file bypass compass passenger monkey keyboard private.network
 signatures.count key.serde partition.key primary.key compression sasha pinned pattern spin cookiecutter""".split()  # noqa: SIM905
PREFIXES = ["", "app.", "systems.lake.", "systems.kafka.consumer.", "spark.hadoop.", "APP_"]
PASSWORDS = st.one_of(
    st.text("abcXYZ0189-._~!$()*%+", min_size=1, max_size=20).map(lambda text: f"{SECRET}{text}"),
    st.sampled_from(["{}@home", "a/{}", "{}#1", "{}?x", "@{}", "x:{}:y", "é{}"]).map(lambda form: form.format(SECRET)),
)
SCHEMES = [
    "http",
    "https",
    "s3",
    "s3a",
    "kafka",
    "postgres",
    "postgresql+psycopg2",
    "jdbc:mysql",
    "mongodb+srv",
    "amqps",
]
SCHEMES += ["redis", "ftp", "abfss", "wasbs", "gs", "hdfs", "SASL_SSL", "ssh", "socks5h"]
HOSTS = ["h", "h:9092", "db.example.org:5432", "[2001:db8::1]:80", "10.0.0.1", "h1:1,h2:2"]
TAILS = ["", "/", "/a/b", "/a?b=c", "?b=c", "#f", "/x@v1"]
AROUND = [
    "{}",
    "no route to {}",
    "`{}`",
    '"{}"',
    "'{}': refused",
    "<{}>",
    "url={}",
    "[{}, other]",
    "({})",
    "a\n{}\nb",
    "{}.",
]


def test_names_of_secrets_and_of_others() -> None:
    for prefix in PREFIXES:
        for name in NAMES:
            assert is_secret(prefix + name), prefix + name
        for name in OTHERS:
            assert not is_secret(prefix + name) or find(prefix + name), prefix + name


@given(PASSWORDS, st.sampled_from(SCHEMES), st.sampled_from(["me", "", "me%40x", "a.b"]), st.sampled_from(HOSTS),
       st.sampled_from(TAILS), st.sampled_from(AROUND))  # fmt: skip
def test_no_password_of_a_url_is_shown_and_the_rest_is(
    password: str, scheme: str, user: str, host: str, tail: str, around: str
) -> None:
    shown = without_secrets(around.format(f"{scheme}://{user}:{password}@{host}{tail}"))
    assert SECRET not in shown
    if "/" not in password and "?" not in password and "#" not in password:
        assert shown == around.format(f"{scheme}://...@{host}{tail}")


FORMS = ["{}={}", "{} = {}", '{}="{}"', "{}='{}'", '"{}": "{}"', "'{}': '{}'", '"{}":"{}"', '\\"{}\\": \\"{}\\"']
FORMS += ["x;{}={};y=1", "http://h/?{}={}", "http://h/p?a=b&{}={}&c=d", "h#{}={}"]


@given(st.sampled_from(NAMES), st.sampled_from(PREFIXES), st.text("abcXYZ0189-._~!*%+/:@", max_size=20),
       st.sampled_from(FORMS), st.sampled_from(AROUND[:5]))  # fmt: skip
def test_no_value_of_a_secret_name_is_shown(name: str, prefix: str, more: str, form: str, around: str) -> None:
    shown = without_secrets(around.format(form.format(prefix + name, SECRET + more)))
    assert SECRET not in shown
    assert name in shown


def test_parameters_of_signed_addresses() -> None:
    signed = {
        f"https://a.blob.core.windows.net/c?sv=2022&sig={SECRET}%2B&se=2030": "https://a.blob.core.windows.net/c?sv=2022&sig=...&se=2030",
        f"s3://b/k?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}/s3&x=1": "s3://b/k?X-Amz-Signature=...&X-Amz-Credential=...&x=1",
        f"https://maps.example/api?key={SECRET}": "https://maps.example/api?key=...",
        f"https://f.example/api/go?code={SECRET}==": "https://f.example/api/go?code=...",
        f"jdbc:oracle:thin:scott/{SECRET}@//h:1521/x": "jdbc:oracle:thin:...@//h:1521/x",
        f"Server=h;Uid=u;Pwd={SECRET}=;Database=d": "Server=h;Uid=u;Pwd=...;Database=d",
        f'Login required username="u" password="a {SECRET} b";': 'Login required username="u" password="...";',
        f"{{'password': '{SECRET}', 'user': 'u'}}": "{'password': '...', 'user': 'u'}",
        f"Authorization: Basic {SECRET}": "Authorization: Basic ...",
        f"('authorization', 'Bearer {SECRET}')": "('authorization', 'Bearer ...')",
        f"curl -H 'Authorization: {SECRET}' h": "curl -H 'Authorization: ...' h",
        f"sent Bearer abc{SECRET}abcdef to h": "sent Bearer ... to h",
        f"-----BEGIN PRIVATE KEY-----\nMI{SECRET}\n-----END PRIVATE KEY-----\n": "-----BEGIN PRIVATE KEY-----...\n",
        "id eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_1 of": "id ... of",
        f"https://{SECRET}@sentry.example/1": "https://...@sentry.example/1",
        f"//me:{SECRET}@h/x": "//...@h/x",
        f"a://u:{SECRET}@h,b://v:{SECRET}@i": "a://...@h,b://...@i",
    }  # fmt: skip
    for text, expected in signed.items():
        assert without_secrets(text) == expected
        assert without_secrets(expected) == expected


def test_texts_without_secrets_stay_as_they_are() -> None:
    for text in (
        "", "plain", "s3://bucket/a/b@v1", "http://host:8080/path@v1?x=1#y", "abfss://container@account.dfs.core.windows.net/x",
        "me@example.org", "local.trips partition 0: from 3 to 0", "`metrics.prometheus.token`: expected a text",
        "give `-c job.root.key=file:PATH`", "password=${env:NAME}", "send it as `Authorization: Bearer TOKEN`",
        "password=cmd:vault read x", "token = cursor.next_token()", "the token: it is in the address", "a = b", "x=1",
        "file:///home/me/jobs", "Basic authentication failed", "password=None", "a//b", "https://example.org",
    ):  # fmt: skip
        assert without_secrets(text) == text


PIECES = [*"a:/@?=&\"'\\. \n-#;{[", "token", "://", "password", "Bearer ", "eyJ", "-----BEGIN PRIVATE KEY-----"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_what_is_shown_has_nothing_left_to_hide(text: str) -> None:
    once = without_secrets(text)
    assert without_secrets(once) == once


REPEATED = ["a", "//", "://a:b", "a=", "password=", "\"'", "\\", "Authorization: ", "Bearer ", "eyJaaaaaaaa.", " "]
REPEATED += ['token"', "-----BEGIN PRIVATE KEY-----", "oracle:thin:a/", "a//b:c/", "token='", "a. ", "a\n", "@"]


@pytest.mark.parametrize("piece", REPEATED)
def test_the_time_grows_with_the_length_alone(piece: str) -> None:
    def seconds(size: int) -> float:
        text = f"=//{piece * (size // len(piece))}"
        began = time.process_time()
        without_secrets(text)
        return time.process_time() - began

    assert seconds(200_000) < 2


def test_errors_logs_and_records_say_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgres://me:{SECRET}@db/sales"
    for made in (ConfigError(f"cannot open {url}"), RetryableError(f"{OSError(url)}"), ConfigError(7, url)):
        assert SECRET not in f"{made} {made!r} {made.args}"
    assert SECRET not in repr(Failure.of(OSError(url), 0))
    passed = PassedOn()
    try:
        raise OSError(url)
    except OSError as error:
        record = logging.LogRecord("app", logging.ERROR, "", 0, "lost %s", (url,), (type(error), error, None))
    passed.emit(record)
    for form in ("text", "json"):
        line = LineFormatter(form).format(record)
        assert (SECRET in line, "postgres://...@db/sales" in line) == (False, True)
    assert SECRET not in repr(passed.take())
