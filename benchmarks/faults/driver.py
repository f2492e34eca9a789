"""The driver of a sweep of the harness: what `ragen-lab sweep` does, with the harness's trainer."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from ragen_lab.errors import ConfigError, HomeError, RagenLabError
from ragen_lab.sweep.drive import Options, own_terminal, run_sweep
from ragen_lab.sweep.last_words import leave
from ragen_lab.sweep.spec import load_sweep, parse_sets

HANGS = 240.0  # seconds after which a driver shows where it stands; the table ends it after 300


def main(page: str, home: str, engine: str, workers: str, *sets: str) -> int:
    """The exit code, as the command line gives it."""
    options = Options(
        Path(home),
        engine,  # type: ignore[arg-type]
        int(workers) if engine == "local" else None,
        trainer="benchmarks.faults.trainer:train",
        report=False,
        command="the same command",
    )
    try:
        return run_sweep(load_sweep(page, parse_sets(sets)), options, own_terminal()).exit_code
    except KeyboardInterrupt:
        print("Interrupted. Repeat the command to go on.", file=sys.stderr)
        return 130
    except RagenLabError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, (ConfigError, HomeError)) else 1


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANGS)
    leave(lambda: main(*sys.argv[1:]))
