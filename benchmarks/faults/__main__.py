"""Inject faults for real and print the table: `python -m benchmarks.faults --design grid --engine local`.

Every fault gets a sweep in a folder of its own; the same command is repeated until the sweep is done. What it cost
is then counted by fact (`measure.py`) against an undisturbed sweep of the same design in one process. Needs Linux;
the faults of the disk need root (a small tmpfs), those of the clock libfaketime.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.inject import FAULTS, LIMITS, CannotInject, Length
from benchmarks.faults.measure import Damage, Reference, compare_home, compare_mlflow, compare_witness, read_home
from benchmarks.faults.session import DESIGNS, SWEEP, Session
from ragen_lab.mirror import default_uri, open_mlflow

HEAD = (
    "| fault | design | engine | times | lost | differing | repeated | of these beyond the checkpoint | MLflow twice | "
    "MLflow missing | wrong status | seconds | message |"
)
COUNTS = ("lost", "differing", "repeated", "beyond", "duplicates", "missing", "wrong")


TEMPLATE = "template.db"


def make_template(root: Path) -> None:
    """An empty MLflow database in one file."""
    open_mlflow(f"sqlite:///{root / 'made.db'}")
    with sqlite3.connect(root / "made.db") as made, sqlite3.connect(root / TEMPLATE) as copy:
        made.backup(copy)
    made.close()
    copy.close()


@dataclass
class Line:
    """One row of the table."""

    fault: str
    design: str
    engine: str
    times: int = 0
    damage: Damage = field(default_factory=Damage)
    seconds: list[float] = field(default_factory=list)
    message: str = ""

    def text(self) -> str:
        name = FAULTS[self.fault][0]
        numbers = [str(getattr(self.damage, key)) for key in COUNTS]
        took = f"{statistics.median(self.seconds):.0f}" if self.seconds else "-"
        faults = "; ".join(dict.fromkeys(self.damage.faults))
        message = self.message.replace("|", "\\|") + (f" **{faults}**" if faults else "")
        return f"| {' | '.join([name, self.design, self.engine, str(self.times), *numbers, took, message])} |"

    @property
    def clean(self) -> bool:
        """Whether it met the goal: it was run, and nothing lost, needlessly repeated, twice or wrong."""
        wrong = sum(getattr(self.damage, key) for key in COUNTS if key != "repeated")
        return self.times > 0 and not self.damage.faults and wrong == 0


def reference(design: str, root: Path) -> Reference:
    """An undisturbed sweep, one trial at a time, in one worker process."""
    session = Session(root / f"reference-{design}", design, "local", seconds=0.0, mlflow=False)
    session.finish(1)
    return Reference(*read_home(session.home, SWEEP))


def length(design: str, engine: str, root: Path, seconds: float) -> Length:
    """What an undisturbed sweep takes under an engine."""
    session = Session(root / f"length-{design}-{engine}", design, engine, seconds, template=root / TEMPLATE)
    began = time.monotonic()
    session.resume()
    rows = sum(each.startswith("row") for each in session.witness())
    return Length(time.monotonic() - began, rows)


def inject(line: Line, seed: int, truth: Reference, takes: Length, root: Path, seconds: float) -> None:
    """One time: hurt, resume, measure; adds to ``line``."""
    name = f"{line.fault}-{line.design}-{line.engine}-{seed}"
    session = Session(root / name, line.design, line.engine, seconds, LIMITS.get(line.fault, ""), root / TEMPLATE)
    began = time.monotonic()
    try:
        found = FAULTS[line.fault][1](session, random.Random(f"{name}"), takes)
    except CannotInject as error:
        line.message = f"not run: {error}"
        return
    except Exception as error:  # the table tells what happened to the others
        line.damage.faults.append(f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
        line.times += 1
        return
    finally:
        session.kill([driver.pid for driver in session.drivers if driver.poll() is None])
        session.kill(session.quiet(5))
    line.seconds.append(time.monotonic() - began)
    line.times += 1
    line.damage.faults += found.notes
    line.damage.faults += [f"the command was repeated {session.calls} times"] * (session.calls > 1)
    compare_witness(session.witness(), line.damage, found.spoilt)
    compare_home(session.home, SWEEP, truth, line.damage)
    compare_mlflow(session.tracking or default_uri(session.home), session.home, SWEEP, truth, line.damage)
    shown = message(session.said(last=found.last), found.words)
    if shown is None:
        line.damage.faults.append(f"no message with {found.words!r}")
    line.message = line.message or shown or ""
    if line.clean:
        shutil.rmtree(session.folder)


def message(said: str, words: str) -> str | None:
    """The first line that the user was shown with one of ``words`` in it, without what varies."""
    for wanted in words.split("|"):
        for text in said.splitlines():
            if wanted in text:
                return re.sub(r"/\S*/", ".../", text)[:300]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--design", action="append", choices=list(DESIGNS), help="may be repeated [grid]")
    parser.add_argument("--engine", action="append", choices=["local", "ray"], help="may be repeated [local]")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="may be repeated [all]")
    parser.add_argument("--repeats", type=int, default=1, help="times per fault, each at another random moment [1]")
    parser.add_argument("--seed", type=int, default=0, help="of the first time; the others follow [0]")
    parser.add_argument("--seconds", type=float, default=0.12, help="of one iteration [0.12]")
    parser.add_argument("--out", type=Path, help="where the table is written too, line by line")
    chosen = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    make_template(root)
    lines: list[Line] = []
    told = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    print("\n".join(told), flush=True)
    for design in chosen.design or ["grid"]:
        truth = reference(design, root)
        for engine in chosen.engine or ["local"]:
            takes = length(design, engine, root, chosen.seconds)
            for fault in chosen.fault or list(FAULTS):
                if fault == "ray_kill" and engine != "ray":
                    continue
                line = Line(fault, design, engine)
                for seed in range(chosen.seed, chosen.seed + chosen.repeats):
                    inject(line, seed, truth, takes, root, chosen.seconds)
                lines.append(line)
                told.append(line.text())
                print(told[-1], flush=True)
                if chosen.out:
                    seeds = f"Seeds of the random moments: {chosen.seed} to {chosen.seed + chosen.repeats - 1}."
                    chosen.out.write_text("\n".join([*told, "", seeds, ""]))
    print(f"\nSeeds of the random moments: {chosen.seed} to {chosen.seed + chosen.repeats - 1}.")
    bad = [line for line in lines if not line.clean]
    print(f"{len(lines) - len(bad)} of {len(lines)} lines met the goal." + (f" Folders: {root}" if bad else ""))
    if not bad:
        shutil.rmtree(root)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
