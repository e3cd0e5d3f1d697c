"""Writes docs/configuration.md: `python -m penstock.config.reference > docs/configuration.md`. With the argument
`samza`, it writes docs/samza.md."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator

from penstock.config.foreign import SAMZA_KEYS, SPARK_KEYS
from penstock.config.key import AnyKey, Topic
from penstock.config.kinds import ByteSize, Millis
from penstock.config.settings import KEYS

_INDEX = "All keys"
_INTRODUCTION = """\
# Configuration

<!-- Generated: python -m penstock.config.reference > docs/configuration.md -->

A configuration is a set of flat, dotted keys. Keys of Samza keep their names; [samza.md](samza.md) says what replaces
those that Penstock does not have. Values are merged from these sources, of which a later one overrides an earlier one:
the defaults below, a file (`--config`, or what the variable `PENSTOCK_CONFIG` names, for commands), values given in
Python, `-c key=value`.

* A file is YAML (`.yaml`, `.yml`, `.json`) or Java properties (`.properties`), in UTF-8. YAML may be nested
  or flat: `job: {name: flights}` and `job.name: flights` mean the same. An empty value means the
  default, in a file and as `-c key=`.
* A duration is a number of milliseconds, or a number with a unit: `500ms`, `10s`, `5min`, `2h`, `1d`.
* A size is a number of bytes, or a number with a unit: `512KB`, `64MB`, `2GB`, in powers of 1024.
* A list is written `a,b`, in YAML also `[a, b]`.
* A secret need not be in the file: `${file:PATH}`, `${env:NAME}` and `${cmd:COMMAND}` in a value stand for what a file
  has, what a variable of the environment has, and what a command writes to its standard output (without a shell, within
  a minute). Keys whose names say that they are secret, such as passwords, tokens and access keys, also take
  `file:PATH`, `env:NAME` and `cmd:COMMAND` as the whole value. The driver reads them once, at the start. Nothing shows
  such a value, nor that of a secret key, nor a user and a password in a URL (`s3://...@bucket`). `-c` refuses secrets
  themselves, because other users of the machine can read command lines.
* `<home>` is the folder that `PENSTOCK_HOME` names, or `.penstock` in the working directory.
* The name of a store or stream may contain dots; a system's may not.
* One file may serve several jobs: `jobs.<job name>.<key>` sets a key for that job alone, and counts more than the key
  itself in the same source. Sections of other jobs are not looked at. `job.name` cannot be in a section, and `job.root`
  should not: commands look for jobs in one root.

An unknown key or a wrong value is an error that names its origin. All errors are reported together.

`penstock config keys TEXT` prints the keys that have TEXT in their names, and `penstock config check` the values that
are set. A key marked *Samza* has Samza's name and meaning.

"""

_SAMZA = """\
# Configuration from Samza

<!-- Generated: python -m penstock.config.reference samza > docs/samza.md -->

Keys that Samza has keep their names and meanings: [configuration.md](configuration.md) marks them. Penstock refuses
every other key. `penstock config check` on a configuration of Samza says for each of the following keys what takes its
place. A key with "remove it" has no counterpart. [From Samza](learn/from_samza.md) is about applications.

| Key of Samza | In Penstock |
|---|---|
{rows}
Some values differ, too:

- `stores.<name>.factory` takes `rocksdb` for `org.apache.samza.storage.kv.RocksDbKeyValueStorageEngineFactory`, and
  `memory` for `org.apache.samza.storage.kv.inmemory.InMemoryKeyValueStorageEngineFactory`. It refuses names of classes.
- `systems.<name>.samza.factory` takes `kafka` and `memory`, and Samza's names of these two classes.
- `stores.<name>.backup.factories` and `.restore.factories` take `changelog-stream` and `blob`, and Samza's names of
  these classes.
- `streams.<id>`: the id is `system.stream`.

Some of Spark's own keys are refused as well, because they are about Spark's streaming queries, and a job of Penstock is
none. In the session of a [streaming query](pyspark.md), they do what they do in any query, but for the state:

| Key of Spark | In Penstock |
|---|---|
{sparks}"""


def markdown() -> str:
    """The page: a section for each topic, and the list of all keys."""
    sections = "".join(f"\n## {topic.title}\n\n{_wrapped(topic.text)}\n{''.join(_entries(topic))}" for topic in Topic)
    names = "".join(f"- {_link(key)}\n" for key in sorted(KEYS, key=lambda key: key.name))
    titles = "".join(f"- {_section(title)}\n" for title in (*(topic.title for topic in Topic), _INDEX))
    return f"{_INTRODUCTION}{titles}{sections}\n## {_INDEX}\n\n{names}"


def samza_markdown() -> str:
    """The page for users of Samza, with the table of its keys."""
    rows = sorted(SAMZA_KEYS, key=lambda each: each.keys[0])
    lines = [f"| {', '.join(f'`{key}`' for key in row.keys)} | {row.answer} |\n" for row in rows]
    sparks = [f"| {', '.join(f'`{key}`' for key in row.keys)} | {row.answer} |\n" for row in SPARK_KEYS]
    return _SAMZA.format(rows="".join(lines), sparks="".join(sparks))


def _section(title: str) -> str:
    return f"[{title}](#{re.sub('[^a-z ]', '', title.lower()).replace(' ', '-')})"


def anchor(key: AnyKey) -> str:
    """The key's anchor on the page: its name, without the brackets of placeholders."""
    return re.sub("[<>]", "", key.name)


def _entries(topic: Topic) -> Iterator[str]:
    for key in KEYS:
        if key.topic is topic:
            facts = f"*Value:* {_value(key)}. *Default:* {_default(key)}."
            origin = " *Samza.*" if key.source == "Samza" else ""
            yield f'\n<a id="{anchor(key)}"></a>\n\n### `{key.name}`\n\n{_linked(key)}\n\n{_wrapped(facts + origin)}\n'


def _link(key: AnyKey) -> str:
    return f"[`{key.name}`](#{anchor(key)})"


def _linked(key: AnyKey) -> str:
    """The key's description, with links to the pages that it names."""
    return _wrapped(re.sub(r"docs/([a-z-]+\.md)", r"[\1](\1)", key.description))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _value(key: AnyKey) -> str:
    kind = key.kind
    if isinstance(kind, (Millis, ByteSize)):
        noun = "duration" if isinstance(kind, Millis) else "size"
        least = "" if kind.minimum is None else f", at least {kind.minimum}"
        return f"{noun} ({kind.unit}){least}"
    return kind.expected


def _default(key: AnyKey) -> str:
    if key.fallback is not None:
        return f"that of {_link(key.fallback)}"
    if key.default is None:
        return key.unset
    return f"`{key.default}`{_readable(key)}"


def _readable(key: AnyKey) -> str:
    if not isinstance(key.kind, (Millis, ByteSize)) or key.default is None:
        return ""
    names = ("d", "h", "min", "s") if isinstance(key.kind, Millis) else ("GB", "MB", "KB")
    number = int(key.default)
    for name in names:
        factor = key.kind.factors[name.lower()]
        if number and number % factor == 0:
            return f" ({number // factor} {name})"
    return ""


if __name__ == "__main__":
    sys.stdout.write(samza_markdown() if sys.argv[1:] == ["samza"] else markdown())
