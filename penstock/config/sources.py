"""The sources of values: YAML and properties files, mappings, `key=value` assignments; and those of secrets.

Each reader returns flat settings, every one with its origin, and adds an entry to `problems` for all it cannot read.
The `.properties` format is that of java.util.Properties: comments, escapes, continued lines. A secret is a reference
to a file, a command or a variable, which is read when the configuration is loaded.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from penstock.base.secrets import HIDDEN, is_secret, without_secrets
from penstock.config.kinds import Raw

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.)", re.DOTALL)
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """One entry; `line` is its first line, counted from 1."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """The text is not a properties file; `line` is the place of the error."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


def parse_properties(text: str) -> list[Property]:
    """The entries in order, repeated keys included (the later one counts).

    Raises:
        PropertiesError: a `\\u` is not followed by four hexadecimal digits, or makes half a character.
    """
    entries = []
    for line, logical in _logical_lines(text):
        found = _KEY.match(logical)
        end = found.end() if found else 0
        key = found[1] if found else ""
        entries.append(Property(_unescape(key, line), _unescape(logical[end:], line), line))
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines left out."""
    held, begin = "", 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANK)
        if not begin and (not line or line[0] in "#!"):
            continue
        begin = begin or number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            held += line[:-1]
            continue
        yield begin, held + line
        held, begin = "", 0
    if held:
        yield begin, held


def _unescape(text: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code == "u":
            raise PropertiesError(line, "`\\u` must be followed by four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) == 5 else _SHORT.get(code, code)

    plain = _ESCAPE.sub(one, text)
    try:
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PropertiesError(line, "a `\\u` escape names one half of a surrogate pair") from None


_REFERENCE = re.compile(r"\$\{(file|env|cmd):([^}]+)\}")
_WHOLE = re.compile(r"(file|env|cmd):(.+)", re.DOTALL)
_MOST_BYTES = 1 << 20
_COMMAND_SECONDS = 60.0


class SourceError(ValueError):
    """The source of a value is absent or fails. The message does not contain the value."""


def refers(key: str, raw: Raw | None) -> bool:
    """True if a value, or a part of it, refers to a file, the environment or a command."""
    items = (raw,) if isinstance(raw, str) else raw or ()
    return any(_REFERENCE.search(each) or (is_secret(key) and _WHOLE.fullmatch(each)) for each in items)


def resolve(key: str, raw: Raw) -> Raw:
    """Replace the references in a value.

    `${file:PATH}`, `${env:NAME}` and `${cmd:COMMAND}` may be parts of any value. The whole value of a secret key may
    also be a reference without `${}`: other values, such as URLs, begin with `file:` themselves.

    Raises:
        SourceError: the source is not there, or fails.
    """
    if not isinstance(raw, str):
        return tuple(_secret_text(key, each) for each in raw)
    return _secret_text(key, raw)


def _secret_text(key: str, text: str) -> str:
    if is_secret(key) and (whole := _WHOLE.fullmatch(text)) is not None:
        return _read_secret(*whole.groups())
    return _REFERENCE.sub(lambda found: _read_secret(*found.groups()), text)


def _read_secret(source: str, place: str) -> str:
    if source == "env":
        try:
            return os.environ[place]
        except KeyError:
            raise SourceError(f"the environment has no variable `{place}`") from None
    data = _secret_of_file(place) if source == "file" else _secret_of_command(place)
    if len(data) > _MOST_BYTES:
        raise SourceError(f"`{source}:{place}` has more than {_MOST_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SourceError(f"`{source}:{place}` is not UTF-8") from None


def _secret_of_file(place: str) -> bytes:
    try:
        with open(os.path.expanduser(place), "rb") as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SourceError(f"the file `{place}` cannot be read: {error.strerror}") from None


def _secret_of_command(command: str) -> bytes:
    """The command's standard output. Its standard error is that of this process."""
    try:
        done = subprocess.run(  # noqa: S603 - the configuration says what to run
            shlex.split(command),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"the command `{command}` did not end within {_COMMAND_SECONDS:.0f} s") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"the command `{command}` cannot be run: {error}") from None
    if done.returncode:
        raise SourceError(f"the command `{command}` ended with status {done.returncode}")
    return done.stdout


_YAML = (".yaml", ".yml", ".json")
_NULL_TAG = "tag:yaml.org,2002:null"
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
"""The first such character ends the key in a message: a secret may follow that was written with another sign than
`=`."""
_OTHERS = ("app.", "spark.")
"""Keys whose values Penstock passes on."""
_MOST_ENTRIES = 100_000
"""Limit of a YAML file: with aliases, a few lines make any number of entries."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it was given; None asks for the default."""

    key: str
    raw: Raw | None
    origin: str
    hidden: bool = False

    @property
    def shown(self) -> str:
        if self.hidden or is_secret(self.key) or self.raw is None:
            return HIDDEN
        return without_secrets(self.raw if isinstance(self.raw, str) else "[" + ", ".join(self.raw) + "]")


def from_file(file: Path, problems: list[str]) -> list[Setting]:
    """The settings of a YAML (nested or flat) or properties file, by its ending."""
    if file.suffix.lower() not in (*_YAML, ".properties"):
        problems.append(f"configuration file `{file}`: expected the ending .yaml, .yml, .json or .properties")
        return []
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.append(f"configuration file `{file}` is not UTF-8: {error}")
        return []
    except OSError as error:
        problems.append(f"configuration file `{file}` cannot be read: {error.strerror}")
        return []
    if file.suffix.lower() in _YAML:
        return _from_yaml(str(file), text, problems)
    try:
        return [Setting(e.key, _text(e.key, e.value), f"{file}:{e.line}") for e in parse_properties(text)]
    except PropertiesError as error:
        problems.append(f"{file}:{error.line}: {error.reason}")
        return []


def from_mapping(values: Mapping[str, object], origin: str, problems: list[str], prefix: str = "") -> list[Setting]:
    settings: list[Setting] = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            settings += from_mapping(value, origin, problems, f"{key}.")
            continue
        try:
            settings.append(Setting(key, _raw(value), origin))
        except TypeError as error:
            problems.append(f"`{key}` ({origin}): {error}")
    return settings


def from_assignments(assignments: Sequence[str], problems: list[str]) -> list[Setting]:
    settings = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        key = name.strip()
        if not equals or not key:
            problems.append(f"`-c {_NO_NAME.split(name)[0]}...`: expected `-c key=value`")
        elif value and is_secret(key) and not refers(key, value):
            problems.append(
                f"`-c {key}=...`: every user of this machine can read what is on a command line. Put the value into a "
                f"file that only you can read, and give `-c {key}=file:PATH`; or `env:NAME` for a variable, or "
                "`cmd:COMMAND` for what a command writes. A configuration file takes the value itself"
            )
        else:
            settings.append(Setting(key, _text(key, value), "-c"))
    return settings


def _text(key: str, value: str) -> Raw | None:
    """A value that can only be text: an empty one asks for the default, as it does in YAML. The application and Spark
    get theirs as they are."""
    return value if value or key.startswith(_OTHERS) else None


def _raw(value: object) -> Raw | None:
    """A Python value as text; booleans as Spark writes them."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        items = tuple(_raw(item) for item in value)
        if any(not isinstance(item, str) for item in items):
            raise TypeError("a list may hold text and numbers only")
        return tuple(item for item in items if isinstance(item, str))
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, (bytes, bytearray, set, frozenset)):
        raise TypeError(f"expected text, a number, a boolean, a path or a list, not {type(value).__name__}")
    return str(value)


def _from_yaml(file: str, text: str, problems: list[str]) -> list[Setting]:
    """Scalars are taken as they are written: `job.id: 010` is `010`, and `no` is not a boolean."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        settings = [] if root is None else list(_flatten(file, root, iter(range(_MOST_ENTRIES))))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.append(f"{file}:{mark.line + 1 if mark else 1}: {error.problem or error.context}")
        return []
    except RecursionError:
        problems.append(f"{file}: it is nested too deeply")
        return []
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: of escapes and versions
        problems.append(f"{file}: {error}")
        return []
    first: dict[str, Setting] = {}
    for setting in settings:
        seen = first.setdefault(setting.key, setting)
        if seen is not setting:
            problems.append(f"`{setting.key}` is set twice in one file: {seen.origin} and {setting.origin}")
    return settings


def _flatten(
    file: str, node: yaml.Node, left: Iterator[int], prefix: str = "", above: tuple[yaml.Node, ...] = ()
) -> Iterator[Setting]:
    """`left` has an element for each entry that the file may still have."""
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="expected keys and values", problem_mark=node.start_mark)
    if node in above:
        raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
    for name, value in node.value:
        if next(left, None) is None:
            raise yaml.MarkedYAMLError(
                problem=f"at most {_MOST_ENTRIES:,} entries are read", problem_mark=name.start_mark
            )
        if not isinstance(name, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=name.start_mark)
        if name.tag == "tag:yaml.org,2002:merge":
            raise yaml.MarkedYAMLError(problem="merge keys (`<<`) are not read", problem_mark=name.start_mark)
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode):
            yield from _flatten(file, value, left, f"{key}.", (*above, node))
        else:
            yield Setting(key, _yaml_raw(value), f"{file}:{name.start_mark.line + 1}")


def _yaml_raw(node: yaml.Node) -> Raw | None:
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == _NULL_TAG else str(node.value)
    items = node.value
    for item in items:
        if not isinstance(item, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a list may hold text and numbers only", problem_mark=item.start_mark)
    return tuple(str(item.value) for item in items)
