"""From an environment to an offline dataset, resumable at any moment."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import uvax
from uvax.collection import agent as agents
from uvax.collection.progress import Report, progress_reporter
from uvax.collection.recording import FILE_IN_FOLDER as RECORDING_IN_FOLDER
from uvax.collection.recording import dataset_of, read_recording, record
from uvax.collection.settings import CollectionSettings, preset_settings
from uvax.configs import differences, read_json
from uvax.data import Dataset, load
from uvax.data.dataset import FILE_IN_FOLDER
from uvax.envs.go_to_door import WALLS, GoToDoor
from uvax.envs.optimal import ceiling
from uvax.errors import Diverged, InvalidInput
from uvax.estimators import config
from uvax.files import make_folder, write_json_atomic
from uvax.training.checkpoints import Checkpoints

SETTINGS_FILE = "collection.json"
CHECKPOINT_FOLDER = "checkpoints"
_CHUNKS = 200  # progress, checkpoints and Ctrl-C are seen between these
_CHECKPOINT_SECONDS = 20.0


class PolicyScore(NamedTuple):
    """Returns of the collecting policy without exploration, on fresh boards, beside the best possible."""

    expert: float
    expert_ceiling: float
    other: float
    other_ceiling: float
    episodes: int


def collect(
    env: GoToDoor,
    steps: int | None = None,
    *,
    seed: int = 0,
    settings: CollectionSettings | None = None,
    preset: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Callable[[Report], None] = True,
) -> Dataset:
    """Run the online agent of Appendix B and return its whole replay history as a dataset.

    Double DQN with epsilon-greedy exploration acts when the target door is on the south or west wall, a fixed random
    Q-network when it is on the north or east wall; the learner trains on everything. `preset` is `smoke` (seconds),
    `cpu` (minutes, sized to the grid) or `paper`; `settings` replaces it, `steps` overrides its number of transitions.

    With `out`, the folder gets `data.safetensors`, the actions alone as `actions.safetensors` (see `replay`), and what
    is needed to go on after Ctrl-C or a kill: call again with `resume=True` and the same arguments, and the result is
    the same to the last bit.

        data = uvax.collect(uvax.envs.GoToDoor(size=5), preset="smoke", seed=0)
    """
    settings = settings or preset_settings(preset, size=int(np.asarray(env.size)))
    if steps is not None:
        settings = settings.with_steps(steps)
    folder = None if out is None else Path(out)
    described = _describe(env, settings, seed)
    if folder is not None:
        finished = _open_folder(folder, described, resume=resume, overwrite=overwrite)
        if finished is not None:
            return finished
    with progress_reporter(progress, f"collecting size {env.size}") as report:
        agent = _run(env, settings, seed, folder, resume, report)
    score = score_policy(env, settings, agent, seed=seed)
    header = {
        **described,
        "num_actions": env.num_actions,
        "policy": "south, west: double DQN; north, east: fixed random Q-network; epsilon-greedy on all",
        "greedy_policy_score": score._asdict(),
    }
    data = dataset_of(env, agent.replay, header)
    if folder is not None:
        _store(data, folder, overwrite=overwrite)
    return data


def replay(
    recording: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Dataset:
    """Make a dataset again from the actions that a collection left (`actions.safetensors`), in seconds.

    The result is that dataset to the last bit, on any machine, where collecting anew would round differently and soon
    act differently; it is checked. `out`, `resume` and `overwrite` are those of `collect`.

        data = uvax.replay("results/actions/size5.safetensors", out="data/size5")
    """
    recorded = read_recording(recording)
    folder = None if out is None else Path(out)
    if folder is not None:
        described = _describe(recorded.environment, recorded.settings, recorded.header["seed"])
        finished = _open_folder(folder, described, resume=resume, overwrite=overwrite)
        if finished is not None:
            return finished
    data = recorded.dataset()
    if folder is not None:
        _store(data, folder, overwrite=overwrite)
    return data


def score_policy(
    env: GoToDoor, settings: CollectionSettings, agent: agents.Agent, *, seed: int, episodes: int = 2_000
) -> PolicyScore:
    """Play `episodes` fresh episodes with the mixture policy and epsilon 0."""

    @jax.jit
    def play(learner, random, env, key):
        key_reset, key_steps = jax.random.split(key)
        start = env.batch_reset(episodes, key=key_reset)

        def body(carry, key):
            state, total = carry
            action = agents.mixture_action(env, settings.dqn, learner, random, state)
            state, _, step = env.batch_step_autoreset(state, action, key=key)
            return (state, total + step.reward), None

        carry = (start, jnp.zeros(episodes))
        (_, total), _ = jax.lax.scan(body, carry, jax.random.split(key_steps, env.max_steps))
        return total, agents.on_expert_wall(env, start)

    # Boards no training step has seen: the stream (seed, -1) is not among (seed, i).
    key = jax.random.fold_in(jax.random.key(seed), 2**32 - 1)
    total, expert = (np.asarray(x) for x in play(agent.learner, agent.random, env, key))
    best = dict(zip(WALLS, ceiling(env).by_wall, strict=True))
    return PolicyScore(
        expert=float(total[expert].mean()),
        expert_ceiling=float(np.mean([best[wall] for wall in ("south", "west")])),
        other=float(total[~expert].mean()),
        other_ceiling=float(np.mean([best[wall] for wall in ("north", "east")])),
        episodes=episodes,
    )


def _describe(env: GoToDoor, settings: CollectionSettings, seed: int) -> dict[str, Any]:
    """Everything that decides the bits of the result."""
    plain = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "dqn"}
    return {
        "environment": env.params(),
        "collection": {**plain, "dqn": config(settings.dqn)},
        "seed": seed,
        "uvax": uvax.__version__,
    }


def _open_folder(folder: Path, described: dict[str, Any], *, resume: bool, overwrite: bool) -> Dataset | None:
    """Refuse or prepare the folder; the dataset itself if an earlier run finished it."""
    if resume and overwrite:
        raise InvalidInput("resume and overwrite contradict each other: go on with what is there, or replace it?")
    file = folder / SETTINGS_FILE
    if not file.exists():
        if folder.exists() and any(folder.iterdir()) and not overwrite:
            raise InvalidInput(f"{folder} exists and is not a collection of uvax; choose another folder for --out")
        make_folder(folder)
    elif resume:
        before = read_json(file)
        if before != json.loads(json.dumps(described)):
            raise InvalidInput(
                f"{folder} holds a collection with other settings ({differences(before, described)}); "
                "resume with the same ones, or choose another folder"
            )
        return load(folder / FILE_IN_FOLDER) if (folder / FILE_IN_FOLDER).exists() else None
    elif not overwrite:
        done = "a finished dataset" if (folder / FILE_IN_FOLDER).exists() else "an unfinished collection"
        raise InvalidInput(f"{folder} already holds {done}; go on with --resume, or replace it with --overwrite")
    else:
        _remove_checkpoints(folder)
        for name in (FILE_IN_FOLDER, RECORDING_IN_FOLDER):
            (folder / name).unlink(missing_ok=True)
    write_json_atomic(file, described)
    return None


def _run(
    env: GoToDoor,
    settings: CollectionSettings,
    seed: int,
    folder: Path | None,
    resume: bool,
    report: Callable[[Report], None],
) -> agents.Agent:
    key = jax.random.key(seed)
    agent = agents.init(env, settings, key=agents.key_of_start(key))
    checkpoints = None if folder is None else Checkpoints(folder / CHECKPOINT_FOLDER)
    if checkpoints is not None and resume:
        restored = checkpoints.restore(agent)
        if restored is not None:
            agent = restored.state
    total = settings.vector_steps
    length = max(1, total // _CHUNKS)
    done = first = int(agent.step)
    begun = saved = time.monotonic()
    while done < total:
        # Chunks end at multiples of `length`, so that two programs are compiled at most, resumed or not.
        chunk = min(length - done % length, total - done)
        agent, sums = agents.advance(agent, env, key, settings=settings, length=chunk)
        done += chunk
        mean = 50.0 * np.asarray(sums.reward) / np.maximum(np.asarray(sums.steps), 1.0)
        loss = float(sums.loss) / chunk
        if not np.isfinite(loss):
            raise Diverged(
                f"collection diverged before step {done * settings.environments:,}: the loss is not finite; "
                "try a smaller learning_rate"
            )
        now = time.monotonic()
        report(
            Report(
                done=done / total,
                updates=done * settings.updates,
                updates_in_all=total * settings.updates,
                expert_return=float(mean[0]),
                other_return=float(mean[1]),
                loss=loss,
                seconds_left=(now - begun) / (done - first) * (total - done),
            )
        )
        if checkpoints is not None and (now - saved > _CHECKPOINT_SECONDS or done == total):
            checkpoints.save(done, agent, {"settings": settings.vector_steps})
            saved = time.monotonic()
    return agent


def _store(data: Dataset, folder: Path, *, overwrite: bool) -> None:
    """The dataset last: where it is, the folder is complete."""
    record(data, folder / RECORDING_IN_FOLDER, overwrite=True)
    data.save(folder / FILE_IN_FOLDER, overwrite=overwrite)
    _remove_checkpoints(folder)


def _remove_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / CHECKPOINT_FOLDER, ignore_errors=True)
