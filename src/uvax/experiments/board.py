"""Figure "gotodoor" (c): the picture of a GoToDoor board, drawn by Minigrid."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from uvax.errors import InvalidInput
from uvax.experiments.analysis import Row
from uvax.experiments.content import Picture, Section
from uvax.experiments.experiment import Experiment, Scope
from uvax.experiments.rows import Trial

NAME = "board"
KIND = "board"


def scope(preset: str) -> Scope:
    return Scope(preset=preset, sizes=(10,), methods=("uvu",), seeds=1)


def trials(scope: Scope, datasets: Mapping[int, str], rows: Sequence[Row]) -> list[Trial]:
    return [
        Trial(NAME, {"kind": KIND, "size": size, "tile": 32}, seed)
        for seed in range(scope.seeds)
        for size in scope.sizes
    ]


def perform(
    config: Mapping[str, Any],
    seed: int,
    *,
    data: Path | None,
    work: Path,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Draw a board; the row holds the picture itself as PNG, in base64."""
    try:
        from uvax.envs.gymnasium import GoToDoorEnv
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the picture of a board needs {error.name}, which is not installed: pip install 'uvax[minigrid]'"
        ) from None
    from PIL import Image

    env = GoToDoorEnv(size=config["size"], render_mode="rgb_array", tile_size=config["tile"])
    try:
        _, _ = env.reset(seed=seed)
        width, height = (config["tile"] * side for side in env.room)
        image = Image.fromarray(env.render()[:height, :width])  # a board may be smaller than the largest one
        mission = str(env.mission)
    finally:
        env.close()
    file = io.BytesIO()
    image.convert("P", palette=Image.Palette.ADAPTIVE).save(file, "PNG", optimize=True)
    return {
        "status": "finished",
        "png": base64.b64encode(file.getvalue()).decode(),
        "width": image.width,
        "height": image.height,
        "mission": mission,
    }


def section(rows: Sequence[Row]) -> Section | None:
    own = [row for row in rows if row["experiment"] == NAME]
    if not own:
        return None
    pictures = [
        Picture(
            id=f"board-{row['trial_id']}",
            title=f"GoToDoor, size {row['config']['size']}",
            png=row["result"]["png"],
            width=row["result"]["width"],
            height=row["result"]["height"],
            alt="A room with a coloured door in each of its four walls and a red triangle, the agent.",
            caption=f"Drawn by Minigrid. The task here: {row['result']['mission']}.",
        )
        for row in own
    ]
    return Section(NAME, 'The environment (Figure "gotodoor" c)', pictures, rows=[row["trial_id"] for row in own])


EXPERIMENT = Experiment(name=NAME, scope=scope, trials=trials, section=section, needs_data=False)
