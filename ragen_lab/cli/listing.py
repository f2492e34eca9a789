"""What ``list``, ``show`` and ``doctor`` print, as plain data."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ragen_lab.config import RunConfig, flatten, knobs, suggest
from ragen_lab.errors import ConfigError, HomeError, TrackingError
from ragen_lab.metrics import METRICS
from ragen_lab.sections import ENV_SECTIONS
from ragen_lab.track import METRICS_FILE, TRIALS_FOLDER, damaged_line

Entry = dict[str, Any]


def entries(what: str, home: Path) -> list[Entry]:
    """Name and sentence of everything of one kind. Raises ConfigError for an unknown kind."""
    kinds: dict[str, Callable[[], list[Entry]]] = {
        "envs": _envs,
        "detectors": _detectors,
        "metrics": _metrics,
        "algorithms": _algorithms,
        "filters": _filters,
        "knobs": _knobs,
        "sweeps": lambda: _sweeps(home),
    }
    if what not in kinds:
        hint = suggest(what, list(kinds))
        raise ConfigError("list", [f"{what!r} cannot be listed.{hint} Allowed: {', '.join(kinds)}."])
    return kinds[what]()


def _envs() -> list[Entry]:
    found = []
    for name, section in ENV_SECTIONS.items():
        fields = section.model_fields
        own = [field for field in fields if field != "name"]
        found.append({"name": name, "about": fields["name"].description, "knobs": own})
    return found


def _detectors() -> list[Entry]:
    from ragen_lab.detect import DETECTORS

    return [{"name": name, "about": detector.doc} for name, detector in DETECTORS.items()]


def _metrics() -> list[Entry]:
    return [{"name": m.name, "about": m.sentence, "unit": m.unit, "better": m.better} for m in METRICS.values()]


def _algorithms() -> list[Entry]:
    from ragen_lab.algo.advantages import ALGORITHMS

    return [{"name": name, "about": algorithm.sentence} for name, algorithm in ALGORITHMS.items()]


def _filters() -> list[Entry]:
    from ragen_lab.filter import FILTERS

    return [{"name": name, "about": about} for name, (about, _) in FILTERS.items()]


def _knobs() -> list[Entry]:
    defaults: dict[str, Any] = {"env.options": {}}
    for section in ENV_SECTIONS.values():
        defaults |= {f"env.{key}": value for key, value in flatten(section().model_dump()).items()}
    defaults |= RunConfig().flat()  # as with the sentences: those of the default environment
    return [
        {"name": path, "about": f"{sentence} [default: {json.dumps(defaults[path])}]", "default": defaults[path]}
        for path, sentence in knobs().items()
    ]


def _sweeps(home: Path) -> list[Entry]:
    from ragen_lab.runs import reading_ledger
    from ragen_lab.sweep.board import plural
    from ragen_lab.sweep.control import status_of

    with reading_ledger(home) as ledger:
        rows = ledger.execute("SELECT name, file, updated FROM sweeps ORDER BY name").fetchall()
    found = []
    for row in rows:
        status = status_of(home, row["name"])
        last = datetime.fromtimestamp(row["updated"]).astimezone().strftime("%Y-%m-%d %H:%M")
        state = status["state"] if status["state"] != "not running" else f"{status['done']} done"
        about = f"{plural(len(status['trials']), 'trial')}, {state}, last started {last}, from {row['file']}"
        found.append({"name": row["name"], "about": about})
    return found


def trajectories(
    home: Path, sweep: str, arm: str | None, seed: int | None, iteration: int | None, count: int
) -> list[Entry]:
    """Stored trajectories of a sweep's runs: the last stored iteration of each unless one is named."""
    from ragen_lab.runs import from_home
    from ragen_lab.track import read_trajectories

    runs = from_home(home, sweep).runs
    faults = []
    if arm is not None and arm not in (arms := sorted({run.arm for run in runs})):
        faults.append(f"--arm: no arm {arm!r}.{suggest(arm, arms)} There are: {', '.join(arms)}.")
    if seed is not None and seed not in (seeds := sorted({run.seed for run in runs})):
        faults.append(f"--seed: no seed {seed}. There are: {', '.join(map(str, seeds))}.")
    if faults:
        raise ConfigError(sweep, faults)
    found = []
    there: set[int] = set()
    for run in runs:
        if arm not in (None, run.arm) or seed not in (None, run.seed):
            continue
        stored = [entry for entry in read_trajectories(home, run.trial_id) if entry["iteration"] < len(run.rows)]
        there |= {int(entry["iteration"]) for entry in stored}
        wanted = iteration if iteration is not None else max((entry["iteration"] for entry in stored), default=None)
        mine = [entry for entry in stored if entry["iteration"] == wanted][:count]
        found += [{"trial_id": run.trial_id, "arm": run.arm, "seed": run.seed, **entry} for entry in mine]
    if not found and there:
        told = ", ".join(map(str, sorted(there)))
        raise ConfigError(sweep, [f"--iteration: nothing is stored of {iteration}. Stored iterations: {told}."])
    if not found:
        raise ConfigError(sweep, ["no trajectories are stored for this choice; see track.trajectories and eval.every."])
    return found


_NEEDED = (
    "torch", "transformers", "tokenizers", "ray", "mlflow", "optuna", "pydantic", "numpy", "scipy", "scikit-learn",
    "pandas", "plotly", "jinja2", "ruamel.yaml", "filelock", "typer", "rich",
)  # fmt: skip


def examine(home: Path) -> list[Entry]:
    """One entry per thing that must work: name, ok, and what was found or what to do."""
    found = [_entry("python", sys.version_info >= (3, 11), f"{sys.version.split()[0]} (3.11 or newer is needed)")]
    for name in _NEEDED:
        try:
            found.append(_entry(name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append(_entry(name, False, "not installed; install ragen-lab again"))
    found.append(_torch())
    found += _home(home)
    return found


def _entry(name: str, ok: bool, about: str) -> Entry:
    return {"name": name, "ok": ok, "about": about}


def _torch() -> Entry:
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:
        return _entry("device", False, f"torch cannot be loaded: {error}")
    if torch.cuda.is_available():
        return _entry("device", True, f"{torch.cuda.device_count()} GPU(s), {torch.cuda.get_device_name(0)}")
    return _entry("device", True, f"CPU ({os.cpu_count()} cores)")


def _home(home: Path) -> list[Entry]:
    from ragen_lab.mirror import default_uri, open_mlflow
    from ragen_lab.sweep.board import plural
    from ragen_lab.sweep.ledger import Ledger

    place = home.absolute()
    if not place.exists():
        return [_entry("home", True, f"{place} is not there yet; the first sweep makes it")]
    free = shutil.disk_usage(place).free / 2**30
    found = [_entry("disk", free > 1, f"{free:.1f} GiB free at {place}" + ("" if free > 1 else "; make some space"))]
    try:
        ledger = Ledger(place)
        found.append(_entry("home", True, f"{place}: {plural(len(ledger.sweep_names()), 'sweep')}"))
        ledger.close()
    except HomeError as error:
        found.append(_entry("home", False, str(error)))
    found += _damaged(place)
    if (place / "mlflow.db").exists():
        try:
            open_mlflow(default_uri(place))
            found.append(_entry("mlflow.db", True, default_uri(place)))
        except TrackingError as error:
            found.append(
                _entry("mlflow.db", False, f"{str(error).rstrip('.')}. `ragen-lab sync SWEEP` rebuilds a deleted one")
            )
    return found


def _damaged(home: Path) -> list[Entry]:
    """One entry per trial whose metrics are broken off in their midst: what follows the damage is not used."""
    found = []
    for file in sorted((home / TRIALS_FOLDER).glob(f"*/{METRICS_FILE}")):
        try:
            damaged = damaged_line(file)
        except HomeError as error:
            found.append(_entry(f"trial {file.parent.name}", False, str(error)))
            continue
        if damaged is not None:
            line, lines = damaged
            about = (
                f"{file} is damaged at line {line} of {lines}, and what follows is not used. Repeat the command of its "
                f"sweep, which computes it again, or bring back the file from a copy"
            )
            found.append(_entry(f"trial {file.parent.name}", False, about))
    return found
