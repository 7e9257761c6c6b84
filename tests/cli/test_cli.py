"""The command line as a person meets it: real processes, exit codes, one sentence for every error."""

import os
import subprocess
import sys

import pytest

from uvax.cli import COMMANDS, main


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "uvax.cli", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


def test_help_lists_every_command_and_loads_neither_jax_nor_numpy():
    probe = "import sys, uvax.cli; uvax.cli.main(['--help']); sys.exit(any(m in sys.modules for m in ('jax', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command}" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(command, capsys):
    try:
        code = main([command, "--help"])
    except SystemExit as stop:
        code = stop.code
    assert not code
    assert f"usage: uvax {command}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("uvax 0.")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["colect"], "unknown command 'colect': did you mean 'collect'?"),
        (["collect", "--size", "4", "--out", "OUT"], "size must be an integer from 5 to"),
        (["collect", "--size", "banana", "--out", "OUT"], "--size is 'banana'; expected a whole number"),
        (["collect", "--preset", "cpi", "--out", "OUT"], "unknown preset 'cpi': did you mean 'cpu'"),
        (["collect", "--out", "OUT", "--learning-rate", "-1"], "learning_rate is -1.0; expected a positive number"),
        (["collect", "--wdth", "3", "--out", "OUT"], "there is no option --wdth; did you mean --width?"),
        (["collect"], "--out is missing"),
        (["collect", "--out", "/proc/nowhere/x", "--preset", "smoke"], "could not be made"),
    ],
)
def test_bad_input_is_one_sentence_a_non_zero_exit_and_nothing_written(args, said, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(out) if a == "OUT" else a for a in args]) != 0
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.startswith("uvax: ")
    assert errors.count("\n") == 1
    assert not out.exists()


@pytest.mark.slow
def test_collect_writes_where_it_says_and_refuses_to_write_over(tmp_path):
    out = tmp_path / "data"
    done = run("collect", "--preset", "smoke", "--out", str(out), UVAX_COMPILE_CACHE="off")
    assert done.returncode == 0, done.stderr
    assert "wall south" in done.stdout
    assert (out / "data.safetensors").exists()
    again = run("collect", "--preset", "smoke", "--out", str(out))
    assert again.returncode == 1
    assert "already holds a finished dataset" in again.stderr
    assert "Traceback" not in again.stderr
    # The same data from the actions alone, as the README has it.
    actions = str(out / "actions.safetensors")
    played = run("collect", "--replay", actions, "--out", str(tmp_path / "again"), UVAX_COMPILE_CACHE="off")
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "again" / "data.safetensors").read_bytes() == (out / "data.safetensors").read_bytes()
    both = run("collect", "--replay", actions, "--size", "6", "--out", str(tmp_path / "other"))
    assert both.returncode == 1
    assert "--size does not go with --replay" in both.stderr
