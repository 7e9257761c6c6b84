"""What the commands about runs share: the environment of a dataset, and where a run keeps what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uvax.configs import read_json
from uvax.envs.go_to_door import GoToDoor
from uvax.errors import InvalidInput

CONFIG_FILE = "config.json"


def environment(header: Mapping[str, Any], what: str) -> GoToDoor:
    """The environment the data came from; task rejection is defined on GoToDoor alone."""
    described = dict(header.get("environment") or {})
    name = described.pop("name", None)
    if name != GoToDoor.name:
        raise InvalidInput(
            f"{what} comes from {name or 'an unnamed environment'}; task rejection is played in GoToDoor "
            "(train without it: --evaluations 0)"
        )
    return GoToDoor(**described)


def read_run(folder: str) -> dict[str, Any]:
    """The configuration of a run folder."""
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise InvalidInput(f"{folder} is not a run: it has no {CONFIG_FILE} (uvax train --out {folder} makes one)")
    return read_json(path)
