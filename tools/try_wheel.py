"""Build the wheel, install it alone into an empty environment, and use it from an empty folder.

Finds what an editable install hides: files left out of the wheel, dependencies not declared. Versions are held to
those of requirements.lock.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

USE = """
import importlib.resources, uvax
assert importlib.resources.files("uvax").joinpath("py.typed").is_file()
data = uvax.collect(uvax.envs.GoToDoor(size=5), preset="smoke", progress=False)
fit = uvax.fit(uvax.UVU(heads=4, width=16, depth=1, batch_size=16), data, steps=20, progress=False)
assert fit.uncertainty(data.obs[:3], data.task[:3]).shape == (3, 4)
print("the wheel works: uvax", uvax.__version__)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        wheel = next(folder.glob("*.whl"))
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env" / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-c", str(ROOT / "requirements.lock"), str(wheel)], check=True)
        empty = folder / "empty"
        empty.mkdir()
        subprocess.run([python, "-I", "-c", USE], check=True, cwd=empty)
        subprocess.run([str(folder / "env" / "bin" / "uvax"), "--version"], check=True, cwd=empty)


if __name__ == "__main__":
    main()
