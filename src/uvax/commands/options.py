"""Options from dataclasses: the command line over a TOML file over defaults, with errors in one sentence."""

import contextlib
import dataclasses
import inspect
import io
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import tyro

from uvax.errors import InvalidInput, unknown_name

T = TypeVar("T")


def parse(options: type[T], argv: Sequence[str], *, command: str, description: str, default: T | None = None) -> T:
    """An instance of the dataclass `options` from the arguments; --help and bad arguments end the program."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(  # type: ignore[return-value]  # never None: `options` is a class
                options,
                prog=f"uvax {command}",
                description=description,
                args=list(argv),
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InvalidInput(f"{_sentence(said.getvalue())} (uvax {command} --help lists the options)") from None


_TITLES = ("Parsing error", "Value error", "Unrecognized options", "Required options", "Missing arguments")


def _sentence(box: str) -> str:
    """The message inside tyro's framed error, as one sentence; the frame is of lines or, on plain terminals, dashes."""
    text = re.sub(r"[│╭╮╰╯─]+|-{4,}", " ", box)
    text = re.sub(r"\s+", " ", text).strip()
    for title in _TITLES:
        text = text.removeprefix(f"{title} ")
    text = text.split(" Argument helptext:")[0].split(" For full helptext")[0]
    if bad := re.search(r"Error parsing (--\S+): (.*: )?('.*')$", text):
        kind = "a whole number" if "int()" in text else "a number" if "float" in text else "another value"
        return f"{bad[1]} is {bad[3]}; expected {kind}"
    if missing := re.search(r"Missing from .*?: (--\S+) \S+ (.*?) \(required\)", text):
        return f"{missing[1]} is missing: {missing[2]}"
    if unknown := re.search(r"Unrecognized options: (\S+?),?( .*)?$", text):
        close = re.search(r"Perhaps you meant: (--[\w-]+)", text)
        return f"there is no option {unknown[1]}" + (f"; did you mean {close[1]}?" if close else "")
    return text.rstrip(".") or "the arguments cannot be used"


def with_settings(options: type, instance: Any) -> type:
    """The dataclass `options` with the hyperparameters of `instance` as further options, its values the defaults.

    What is a function or an object (a policy, a network of one's own) is not for the command line.
    """
    helps = _comments(type(instance))
    fields = []
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        kind = _plain_type(f.type, value)
        if kind is not None and (value is None or isinstance(value, bool | int | float | str)):
            annotated = Annotated[kind, tyro.conf.arg(help=helps.get(f.name, ""))]  # type: ignore[valid-type]  # made here
            fields.append((f.name, annotated, dataclasses.field(default=value)))
    return dataclasses.make_dataclass("Options", fields, bases=(options,), frozen=True, kw_only=True)


def _comments(cls: type) -> dict[str, str]:
    """The comment behind each field, from the source: hyperparameters are explained once, where they are defined."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            for line in inspect.getsource(base).splitlines():
                if match := re.match(r"\s+(\w+):.*?  # (.*)", line):
                    found[match[1]] = match[2]
    return found


def _plain_type(hint: Any, value: Any) -> Any:
    """The annotation with only the types a person can type; None if nothing is left."""
    if isinstance(hint, str):
        return type(value) if value is not None else None
    if get_origin(hint) in (Union, types.UnionType):
        plain = [t for t in get_args(hint) if t in (bool, int, float, str, type(None))]
        return Union[tuple(plain)] if plain and plain != [type(None)] else None  # noqa: UP007  # built at run time
    return hint if hint in (bool, int, float, str) else None


def read_toml(path: str) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}; --config takes a TOML file (--print-config writes one)") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from None


def merge(instance: Any, values: Mapping[str, Any], where: str) -> Any:
    """`instance` with values from a file put in; an unknown name lists the close ones, a wrong type is said."""
    known = {f.name: f for f in dataclasses.fields(instance)}
    for name, value in values.items():
        if name not in known:
            raise unknown_name(f"setting in {where}", name, known)
        before = getattr(instance, name)
        if before is not None and value is not None and not _fits(value, before):
            raise InvalidInput(f"{name} in {where} is {value!r}; expected a {type(before).__name__} such as {before!r}")
    numbers = {n: float(v) if isinstance(getattr(instance, n), float) else v for n, v in values.items()}
    return dataclasses.replace(instance, **numbers)


def _fits(value: Any, before: Any) -> bool:
    if isinstance(before, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(before, bool)
    return isinstance(value, type(before)) or (isinstance(before, float) and isinstance(value, int))


def to_toml(sections: Mapping[str, Any]) -> str:
    """Plain values and one level of tables as TOML. None, which TOML does not have, becomes a comment."""
    lines, tables = [], []
    for name, value in sections.items():
        if isinstance(value, Mapping):
            tables.append(f"\n[{name}]\n{to_toml(value)}")
        elif value is None:
            lines.append(f"# {name} = (not set)")
        else:
            lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n" + "".join(tables)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(v) for v in value)}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
