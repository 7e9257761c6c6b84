"""Training on several devices, in one process and in two, equals training on one to rounding."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from uvax.errors import InvalidInput
from uvax.training import fit

PROGRAM = Path(__file__).with_name("on_devices.py")
pytestmark = pytest.mark.slow


def start(devices: int, *arguments: object) -> subprocess.Popen:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    environment = os.environ | {"XLA_FLAGS": flags}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_simulated_devices_equal_one():
    states = result(start(8))
    assert len(states) == 10
    for name, state in states.items():
        np.testing.assert_allclose(state, states[f"{name.rsplit(' ', 1)[0]} 0"], rtol=1e-4, atol=1e-6, err_msg=name)


def test_two_processes_equal_one(tmp_path, make_data, linear):
    alone = fit(linear(), make_data(160), 20, log_every=5, progress=False)

    def both(way):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        return [result(p) for p in [start(2, rank, port, tmp_path / "run", way) for rank in (0, 1)]]

    assert both("stop") == [{"stopped": True}] * 2
    first, second = both("resume")
    assert first == second
    assert first["devices"] == 4
    expected = [float(x) for name in ("step", "w") for x in np.ravel(alone.state[name])]
    np.testing.assert_allclose(first["state"], expected, rtol=1e-4, atol=1e-6)
    assert all("holds a run already" in answer["error"] for answer in both("start"))


def test_a_batch_that_does_not_divide_is_refused(data, linear):
    with pytest.raises(InvalidInput, match=r"devices has 3 devices and batch_size is 8; .* divides evenly"):
        fit(linear(), data, 2, devices=jax.devices() * 3)
