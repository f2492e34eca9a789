"""MLflow's own pages: served from the database of a home, with the addresses of those that show a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ragen_lab.errors import HomeError
from ragen_lab.mirror import MLFLOW_QUIET, current, default_uri, mlflow_errors, open_mlflow


@dataclass(frozen=True)
class SweepPages:
    """Addresses, below the server's, of the MLflow pages that show a sweep."""

    runs: str  # one line per trial: the plain list folds them under the sweep's own run
    success: str  # eval/success over iterations, one curve per trial
    compare: str  # parameters and last metrics side by side


def sweep_pages(uri: str) -> dict[str, SweepPages]:
    """Sweep -> its pages. Raises TrackingError where the database cannot be read."""
    client = open_mlflow(uri)
    pages: dict[str, SweepPages] = {}
    with mlflow_errors(uri):
        for experiment in client.search_experiments():
            runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
            ids = [run.info.run_id for run in runs if "mlflow.parentRunId" in run.data.tags and current(run.data.tags)]
            if ids:
                these = f"runs={_quoted(ids)}&experiments={_quoted([experiment.experiment_id])}"
                metric = _quoted("eval/success")
                pages[experiment.name] = SweepPages(
                    f"#/experiments/{experiment.experiment_id}/runs?searchFilter={quote(_TRIALS)}"
                    f"&orderByKey={quote('tags.`position`')}&orderByAsc=true",
                    f"#/metric?{these}&metric={metric}&plot_metric_keys=%5B{metric}%5D&x_axis=step"
                    f"&y_axis_scale=linear&line_smoothness=1&show_point=true",
                    f"#/compare-runs?{these}",
                )
    return pages


_TRIALS = "tags.arm != ''"


def _quoted(value: Any) -> str:
    return quote(json.dumps(value, separators=(",", ":")))


def serve_ui(home: Path, port: int, say: Callable[[str], None]) -> int:
    """Serve the MLflow pages of a home on the loopback interface until interrupted; the exit code.

    ``say`` is told the address and the pages of each sweep.
    Raises HomeError where there is nothing to show.
    """
    file = home / "mlflow.db"
    if not file.is_file():
        raise HomeError(f"{home} holds no MLflow database yet. Run a sweep first, or name another --home.")
    environment = {
        **os.environ,
        **{key: os.environ.get(key, value) for key, value in MLFLOW_QUIET.items()},
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # two processes instead of ten
    }
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", default_uri(home),
               "--default-artifact-root", (home / "mlflow-artifacts").absolute().as_uri(),
               "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--uvicorn-opts", "--log-level warning"]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    say(f"MLflow: {address} (Ctrl-C to end)")
    for sweep, pages in sweep_pages(default_uri(home)).items():
        say(f"{sweep}, its trials: {address}/{pages.runs}")
        say(f"{sweep}, success over iterations: {address}/{pages.success}")
        say(f"{sweep}, compared: {address}/{pages.compare}")
    # A session of its own: the server is two processes, and both must go when we are told to.
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
