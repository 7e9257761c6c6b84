"""Write requirements.lock: what `pyproject.toml` and its dev group need, at the versions installed here.

Only what is reachable from uvax's own dependencies, its `all` extra and the dev group is listed, so that a package
installed by hand does not slip in. What Ray and TensorBoard need besides goes to requirements-extras.lock (`make
test-extras`). Names and versions only: no index, no hash, no path.
"""

import importlib.metadata as metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("ray", "tensorboard")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    base = _reachable([*project["project"]["dependencies"], *_extra(project, "all"), *_group(project, "dev")])
    _write("requirements.lock", base)
    extras = _reachable([text for extra in EXTRAS for text in _extra(project, extra)])
    _write("requirements-extras.lock", {name: version for name, version in extras.items() if name not in base})


def _write(name: str, versions: dict[str, str]) -> None:
    lines = [f"{package}=={version}" for package, version in sorted(versions.items())]
    (ROOT / name).write_text("# Exact versions; written by `make lock`.\n" + "\n".join(lines) + "\n")
    print(f"{name}: {len(lines)} packages")


def _reachable(wanted: list[str]) -> dict[str, str]:
    """Those packages and all they need, with their versions."""
    seen: dict[str, str] = {}
    queue = [Requirement(text) for text in wanted]
    while queue:
        requirement = queue.pop()
        name = _canonical(requirement.name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{requirement} is not installed; install it first, then lock") from None
        known = name in seen
        seen[name] = found.version
        extras = requirement.extras or {""}
        if known and extras == {""}:
            continue
        for text in found.requires or []:
            needed = Requirement(text)
            wanted_here = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in {*extras, ""})
            if wanted_here and (_canonical(needed.name) not in seen or needed.extras):
                queue.append(needed)
    return seen


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _extra(project: dict, name: str) -> list[str]:
    extras = project["project"]["optional-dependencies"]
    out = []
    for text in extras[name]:
        requirement = Requirement(text)
        if requirement.name == project["project"]["name"]:
            out += [line for extra in sorted(requirement.extras) for line in _extra(project, extra)]
        else:
            out.append(text)
    return out


def _group(project: dict, name: str) -> list[str]:
    out = []
    for entry in project["dependency-groups"][name]:
        out += _group(project, entry["include-group"]) if isinstance(entry, dict) else [entry]
    return out


if __name__ == "__main__":
    main()
