"""The floors: imports fall downwards only, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ragen_lab"

# docs/architecture.md draws these floors; a room may import from lower floors, and from its own room.
FLOORS: list[set[str]] = [
    {"errors", "trajectory", "metrics", "phrases", "diversity", "seeds", "keep", "redaction"},
    {"locks", "page", "sections"},
    {"config", "inert"},
    {
        "env",
        "prompt",
        "reward",
        "filter",
        "algo",
        "detect",
        "policy",
        "provenance",
        "track",
        "mirror",
        "mirror_traces",
        "mirror_pages",
        "mirror_folders",
        "runs",
    },
    {"rollout", "warm_start", "findings"},
    {"evaluate"},
    {"train", "report"},
    {"sweep"},
    {"cli"},
]
# Rooms of one floor that build on each other: (importer, imported).
NEIGHBOURS = {
    ("inert", "config"),
    ("filter", "reward"),
    ("algo", "reward"),
    ("reward", "env"),
    ("policy", "prompt"),
    ("track", "provenance"),
    ("mirror", "track"),
    ("mirror", "mirror_traces"),
    ("mirror_pages", "mirror"),
    ("mirror_folders", "track"),
    ("runs", "track"),
    ("runs", "mirror"),
    ("runs", "detect"),
}
ONLY_HERE = {
    "torch": {"policy", "algo", "rollout", "warm_start", "train"},
    "transformers": {"policy", "rollout"},
    "ray": {"sweep/tune.py"},
    "mlflow": {"mirror.py", "mirror_traces.py", "runs.py"},
    "tensorboardX": {"mirror_folders.py"},
    "wandb": {"mirror_folders.py"},
    "plotly": {"report/figure_style.py", "report/figures.py", "report/figures_search.py", "report/figures_survival.py"},
    "optuna": {"sweep/search.py"},
}


def room(module: str) -> str:
    return module.split(".")[1]


def floor_of(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def imports(file: Path) -> list[tuple[str, bool]]:
    """(module, under TYPE_CHECKING) of every import statement, inside functions too."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            found += [
                (f"{module}.{a.name}" if module == "ragen_lab" else module, id(node) in typing_only) for a in node.names
            ]
    return found


ENTRY = {"__init__", "__main__"}  # the version, and `python -m`
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem not in ENTRY)


def owner(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_fall_downwards(file):
    mine = owner(file)
    for module, typing_only in imports(file):
        if typing_only or not module.startswith("ragen_lab.") or module == "ragen_lab.__version__":
            continue
        other = room(module)
        allowed = other == mine or (mine, other) in NEIGHBOURS or floor_of(other) < floor_of(mine)
        assert allowed, f"{file.relative_to(PACKAGE)} ({mine}) imports {module}: not a lower floor"


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_stay_in_their_rooms(file):
    place = file.relative_to(PACKAGE).as_posix()
    for module, typing_only in imports(file):
        allowed = ONLY_HERE.get(module.split(".")[0])
        if allowed is not None and not typing_only:
            assert owner(file) in allowed or place in allowed, f"{place} imports {module}"


def test_the_map_names_every_room_and_no_other():
    rooms = {owner(file) for file in FILES}
    assert rooms == set().union(*FLOORS)


def test_a_forbidden_import_would_be_seen(tmp_path):
    """The check itself can fail: an upward import is found in a function body too."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from ragen_lab.cli import app\n    import ray.tune\n")
    assert imports(file) == [("ragen_lab.cli", False), ("ray.tune", False)]
    assert floor_of("cli") > floor_of("train")


@pytest.mark.parametrize("command", [["--help"], ["check", "experiments/frozen_lake_grpo.yaml"], ["list", "metrics"]])
def test_light_commands_import_nothing_heavy(command):
    code = (
        "import sys\nfrom ragen_lab.cli import main\n"
        f"sys.argv = ['ragen-lab', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print([m for m in ('torch', 'ray', 'mlflow', 'transformers', 'plotly', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
