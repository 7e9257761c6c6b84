"""Configurations as plain data: reading them back and saying how two of them differ."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uvax.errors import DamagedFile


def read_json(path: Path) -> Any:
    """The JSON in that file, or a sentence about what is there instead."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} is not valid JSON ({error}); it was altered after uvax wrote it") from None


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(before: Mapping[str, Any], now: Mapping[str, Any], most: int = 4) -> str:
    """'width was 128, is 256; ...' for the names whose values differ; empty when none does."""
    old, new = flatten(before), flatten(json.loads(json.dumps(now)))
    names = [n for n in sorted({*old, *new}) if old.get(n) != new.get(n)]
    said = [f"{n} was {old.get(n, 'absent')}, is {new.get(n, 'absent')}" for n in names[:most]]
    return "; ".join(said) + (f"; and {len(names) - most} more" if len(names) > most else "")
