"""MLflow's own pages: served from the database of a home, with the addresses of those that show a sweep."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from ragen_lab.errors import ConfigError, HomeError
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
    Raises HomeError where there is nothing to show or the server ends by itself, ConfigError for a port in use.
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
    found = sweep_pages(default_uri(home))  # a database that cannot be read is told before anything is promised
    refuse_busy(port)
    say(f"Starting MLflow at {address} (Ctrl-C to end) ...")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryFile() as words:
        # A session of its own: the server is two processes, and both must go when we are told to.
        server = subprocess.Popen(command, env=environment, start_new_session=True, stdout=words, stderr=words)
        try:
            _await(server, address)
            say(f"MLflow: {address}")
            for sweep, pages in found.items():
                say(f"{sweep}, its trials: {address}/{pages.runs}")
                say(f"{sweep}, success over iterations: {address}/{pages.success}")
                say(f"{sweep}, compared: {address}/{pages.compare}")
            if code := server.wait():
                raise HomeError(f"MLflow's server ended with exit code {code}: {_last_line(words)}")
            return 0
        except KeyboardInterrupt:
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def refuse_busy(port: int) -> None:
    """Raises ConfigError for a port of this machine that another program holds."""
    with socket.socket() as wanted:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was left a moment ago is free
        try:
            wanted.bind(("127.0.0.1", port))
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigError(
                "--port", [f"{port} cannot be used: {why}. Name another one: --port {port + 1}."]
            ) from None


def _await(server: subprocess.Popen[bytes], address: str, patience: float = 90.0) -> None:
    """Until the server answers, or has ended, or for so long: the pages are told once they are there."""
    deadline = time.monotonic() + patience
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)


def _last_line(words: IO[bytes]) -> str:
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing."
