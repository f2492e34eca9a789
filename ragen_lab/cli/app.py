"""All commands. Everything heavy is imported inside the command that needs it, so that ``--help`` is instant."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ragen_lab.cli.called import program as _program
from ragen_lab.cli.called import typed as _typed

app = typer.Typer(
    name="ragen-lab",
    help="Sweeps, collapse detection and honest reports for multi-turn reinforcement learning of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Home = Annotated[
    Path, typer.Option("--home", envvar="RAGEN_LAB_HOME", help="Folder of results: trials, ledger, MLflow database.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Where the report goes; default: reports/out/NAME.html.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=v", help="Override a knob, or a key of a sweep page. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script; words for people go to stderr.")]
HOME = Path(".ragen-lab")


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit; what the user can mend is told without a traceback."""
    from ragen_lab.errors import CheckpointError, ConfigError, HomeError, NotBuilt, TrackingError, TrialLocked

    as_json = "--json" in (sys.argv[1:] if args is None else args)
    try:
        app(args)
    except (ConfigError, NotBuilt, HomeError) as error:
        _tell(error, as_json)
        sys.exit(2)
    except (TrialLocked, TrackingError, CheckpointError) as error:
        _tell(error, as_json)
        sys.exit(1)
    except KeyboardInterrupt:
        print("Interrupted. Repeat the command to go on.", file=sys.stderr)
        sys.exit(130)


def _tell(error: Exception, as_json: bool) -> None:
    """What is wrong: for people, and under --json for a script as well, as the last line of stdout."""
    from ragen_lab.redaction import redact

    print(redact(str(error)), file=sys.stderr)  # it may repeat what the user gave
    if as_json:
        faults = getattr(error, "faults", [str(error)])
        print(json.dumps({"faults": [redact(fault) for fault in faults]}), flush=True)


def _version(wanted: bool) -> None:
    if wanted:
        from ragen_lab import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="The sweep page, for example sweeps/quickstart.yaml.", show_default=False)
    ] = None,
    set_: Sets = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show trials, cost and warnings, and run nothing.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="With --plan: run 2 iterations per cost setting to estimate the time.")
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="A pool of processes on this machine instead of Ray.")] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=0, help="Local processes; implies --local. 0 = in this one, to debug."),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="A running Ray cluster; its machines must share the home.")
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option("--rerun", metavar="failed|collapsed|ARM", help="Compute these trials anew; the old are kept."),
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="NAME", help="Show what a sweep is doing, from any terminal.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", metavar="NAME", help="End a running sweep now; repeat it to resume.")
    ] = None,
    pause: Annotated[
        str | None, typer.Option("--pause", metavar="NAME", help="End a running sweep at its trials' checkpoints.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Run every arm and seed of a sweep page, then write its report. Repeat the command to resume.

    A running sweep can be watched and ended by its name from another terminal.

    Examples:

    ragen-lab sweep sweeps/quickstart.yaml

    ragen-lab sweep sweeps/quickstart.yaml --plan --set seeds=5

    ragen-lab sweep sweeps/quickstart.yaml --local --set train.iterations=10 --json

    ragen-lab sweep sweeps/quickstart.yaml --rerun failed

    ragen-lab sweep --status quickstart

    ragen-lab sweep --pause quickstart
    """
    from ragen_lab.errors import ConfigError
    from ragen_lab.sweep.control import choice
    from ragen_lab.sweep.drive import Options, own_terminal, run_sweep
    from ragen_lab.sweep.plan_text import describe, plan_as_json, plan_here
    from ragen_lab.sweep.spec import load_sweep

    running = {"set": set_, "plan": plan, "probe": probe, "local": local, "workers": workers is not None,
               "address": address is not None, "rerun": rerun is not None, "out": out}  # fmt: skip
    if asked := choice(file, {"status": status, "stop": stop, "pause": pause}, running):
        _control(home, *asked, as_json)
        return
    assert file is not None
    if probe and not plan:
        raise ConfigError("--probe", ["measures how long a sweep would take and runs none of it; add --plan."])
    engine = "--local" if local else None if workers is None else "--workers"
    if address is not None and engine is not None:
        raise ConfigError("--address", [f"joins a Ray cluster, and {engine} runs without Ray; leave out one of them."])
    spec = load_sweep(file, _overrides(set_))
    if plan:
        planned = plan_here(spec, home, address)
        if probe:
            from ragen_lab.sweep.probe import probed

            planned = probed(planned, home, lambda line: print(line, file=sys.stderr))
        print(json.dumps(plan_as_json(planned)) if as_json else describe(planned))
        return
    options = Options(
        home,
        "local" if engine else "ray",
        workers,
        address,
        _typed(rerun),
        _program(),
        out=out,
        rerun=rerun,
        events=_events(as_json),
    )
    _finish(run_sweep(spec, options, own_terminal()), as_json)


def _control(home: Path, action: str, name: str, as_json: bool) -> None:
    from ragen_lab.sweep.control import ask, describe_status, status_of

    if action == "status":
        found = status_of(home, name)
        print(json.dumps(found) if as_json else describe_status(found))
        return
    told = ask(home, name, action, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps(told))


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The experiment page, for example experiments/frozen_lake_grpo.yaml.")],
    set_: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Train one run in this process. Repeat the command to resume; other seeds join its report.

    Example: ragen-lab run experiments/frozen_lake_grpo.yaml --set train.iterations=10 --set seed=1
    """
    from ragen_lab.sweep.drive import Options, own_terminal, run_sweep
    from ragen_lab.sweep.spec import one_run

    options = Options(home, "local", 0, command=_typed(), program=_program(), out=out, events=_events(as_json))
    _finish(run_sweep(one_run(file, _overrides(set_)), options, own_terminal()), as_json)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A sweep page or an experiment page.")],
    preflight: Annotated[bool, typer.Option("--preflight", help="Play the environments at random too.")] = False,
    set_: Sets = None,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Say everything that is wrong with a page, and what may spoil its conclusions. Trains nothing.

    Example: ragen-lab check sweeps/quickstart.yaml
    """
    from ragen_lab.sweep.plan_text import describe, plan_as_json, plan_here
    from ragen_lab.sweep.spec import load_page

    planned = plan_here(load_page(file, _overrides(set_)), home)
    told: dict[str, Any] = {}
    lines = [f"{file}: no faults.\n{describe(planned, brief=True)}"]
    if preflight:
        from ragen_lab.env.check import preflight_sentence, preflights

        played = preflights([trial.cfg for trial in planned.sweep.trials])
        told["preflight"] = [{"env": cfg.env.model_dump(), **found} for cfg, found in played]
        lines += [preflight_sentence(cfg, found) for cfg, found in played]
    if as_json:
        print(json.dumps({"file": str(file), "ok": True, **plan_as_json(planned), **told}))
    else:
        print("\n".join(lines))


@app.command()
def report(
    sweep: Annotated[str, typer.Argument(help="Name of a sweep in the home.")],
    out: Out = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Read an MLflow server instead of the home.")
    ] = None,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Judge the runs of a sweep and write its report, without running anything.

    Example: ragen-lab report quickstart
    """
    from ragen_lab.errors import ConfigError
    from ragen_lab.sections import unreadable
    from ragen_lab.sweep.drive import report_of

    if mlflow is not None and (why := unreadable(mlflow)):
        raise ConfigError("--mlflow", [f"{mlflow!r} {why}; give one such as http://localhost:5000."])
    written = report_of(home, sweep, out, uri=mlflow)
    print(json.dumps({"sweep": sweep, "report": str(written)}) if as_json else written)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="envs, detectors, metrics, algorithms, filters, knobs or sweeps.")],
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Name what there is, one sentence each.

    Example: ragen-lab list metrics
    """
    from ragen_lab.cli.listing import entries

    found = entries(what, home)
    if as_json:
        print(json.dumps(found))
        return
    width = max((len(entry["name"]) for entry in found), default=0)
    for entry in found:
        print(f"{entry['name']:<{width}}  {entry['about']}")


@app.command("eval")
def eval_(
    env: Annotated[str, typer.Option("--env", help="Name of an environment; see `ragen-lab list envs`.")],
    actions: Annotated[int, typer.Option("--actions", min=1, max=1000, help="Actions per episode at most.")],
    reference: Annotated[bool, typer.Option("--reference", help="The random, fixed-string and optimal lines.")] = False,
    levels: Annotated[int, typer.Option("--levels", min=1, max=4096, help="Evaluation levels.")] = 256,
    set_: Sets = None,
    as_json: AsJson = False,
) -> None:
    """How well random play, the best fixed action string and optimal play do on the evaluation levels.

    Example: ragen-lab eval --env frozen_lake --reference --actions 10 --set env.slip=0 --json
    """
    from ragen_lab.env.reference import reference_lines
    from ragen_lab.errors import NotBuilt
    from ragen_lab.sweep.spec import env_section

    if not reference:
        raise NotBuilt("eval: evaluating a policy is not built in this version; allowed: --reference.")
    section = env_section(env, _overrides(set_))
    if actions * levels > 10_000:
        print(f"Searching {levels} levels for {actions} actions; this may take some minutes.", file=sys.stderr)
    lines = reference_lines(section, actions, levels)
    found = {
        "env": env,
        "actions": actions,
        "levels": levels,
        "random": lines.random,
        "fixed_string": lines.fixed_string,
        "optimal": lines.optimal,
    }
    if as_json:
        print(json.dumps(found))
        return
    print(f"{env}: success on {levels} evaluation levels with at most {actions} actions")
    for name in ("random", "fixed_string", "optimal"):
        value = found[name]
        print(f"  {name:<13}{'-' if value is None else f'{value:.4f}'}  {lines.how.get(name, '')}")


@app.command()
def show(
    sweep: Annotated[str, typer.Argument(help="Name of a sweep in the home.")],
    arm: Annotated[str | None, typer.Option("--arm", help="Only this arm.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Only this seed.")] = None,
    iteration: Annotated[int | None, typer.Option("--iteration", help="Default: the last that is stored.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Trajectories per run at most.")] = 2,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Read what the model said and did in evaluation.

    Example: ragen-lab show quickstart --arm keep_ratio=0.5 --seed 0
    """
    from ragen_lab.cli.listing import trajectories

    found = trajectories(home, sweep, arm, seed, iteration, count)
    if as_json:
        print(json.dumps(found))
        return
    for entry in found:
        who = f"{entry['arm']} · seed {entry['seed']} · iteration {entry['iteration']}"
        print(f"--- {who} · reward {entry['reward']:g} · {entry['stop']}")
        for number, turn in enumerate(entry["turns"], start=1):
            print(f"[turn {number}]\n{turn['observation']}\n> {turn['reply']}")
            did = " ".join(turn["actions"]) or "nothing"
            print(f"  did: {did} (reward {turn['reward']:g}, penalty {turn['penalty']:g})")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="HOME2", help="The home folder to import from; it is only read.")],
    sweep: Annotated[str | None, typer.Option("--sweep", help="Only this sweep of it (default: everything).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would come, with its bytes; copy nothing.")
    ] = False,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Bring trials, and their sweeps, of another home into this one; verified, and never over a trial that differs.

    Examples:

    ragen-lab import /mnt/cluster/.ragen-lab --dry-run

    ragen-lab import ../other/.ragen-lab --sweep filter_ratio
    """
    from ragen_lab.sweep.transfer import as_json as plain
    from ragen_lab.sweep.transfer import bring, describe, plan_import

    found = plan_import(home, source, sweep)
    if not dry_run:
        print(describe(found, home), file=sys.stderr, flush=True)
        found = bring(home, found, sweep)
    print(json.dumps(plain(found)) if as_json else describe(found, home))
    sys.exit(1 if found.refused else 0)


@app.command()
def prune(
    sweep: Annotated[
        str | None, typer.Argument(help="Name of a sweep (default: every trial of the home).", show_default=False)
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="last|best|before-alarm", help="What stays. May be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it, only say what would go.")] = False,
    as_json: AsJson = False,
    home: Home = HOME,
) -> None:
    """Delete checkpoints by a policy, with the bytes told first. Results, trajectories and logs stay.

    Examples:

    ragen-lab prune --keep last

    ragen-lab prune filter_ratio --keep best --keep before-alarm --yes
    """
    from ragen_lab.sweep.prune import as_json as plain
    from ragen_lab.sweep.prune import describe
    from ragen_lab.sweep.prune import prune as apply

    policies = keep or []
    found = apply(home, sweep, policies, delete=yes)
    print(json.dumps(plain(sweep, policies, found, yes)) if as_json else describe(policies, found, yes, home))


@app.command()
def sync(
    sweep: Annotated[str, typer.Argument(help="Name of a sweep in the home.")],
    home: Home = HOME,
) -> None:
    """Rebuild what MLflow (and TensorBoard, W&B) show of a sweep from the home, which is the truth.

    Example: ragen-lab sync quickstart
    """
    from ragen_lab.sweep.board import plural
    from ragen_lab.sweep.mirroring import sync as rebuild

    count, places = rebuild(home, sweep)
    for place in places:
        print(f"{plural(count, 'run')} of {sweep} written to {place}")


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 5000,
    home: Home = HOME,
) -> None:
    """Open the MLflow pages of the home on this machine only. Ctrl-C ends it.

    Example: ragen-lab ui --port 5001
    """
    from ragen_lab.mirror_pages import serve_ui

    sys.exit(serve_ui(home, port, lambda line: print(line, flush=True)))


@app.command()
def dashboard(
    sweep: Annotated[str, typer.Argument(help="Name of a search in the home.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")] = 8080,
    home: Home = HOME,
) -> None:
    """Show a search in optuna-dashboard, where it is installed, on this machine only. Ctrl-C ends it.

    Example: ragen-lab dashboard search_lr --port 8081
    """
    from ragen_lab.mirror_pages import refuse_busy
    from ragen_lab.sweep.searched import dashboard as command_of

    command = command_of(home, sweep, port)
    refuse_busy(port)
    print(f"http://127.0.0.1:{port}", flush=True)
    os.execv(command[0], command)


@app.command()
def doctor(as_json: AsJson = False, home: Home = HOME) -> None:
    """Look at this installation and the home, and say what would not work.

    Example: ragen-lab doctor
    """
    from ragen_lab.cli.listing import examine

    found = examine(home)
    if as_json:
        print(json.dumps(found))
    else:
        width = max(len(entry["name"]) for entry in found)
        for entry in found:
            print(f"{'ok  ' if entry['ok'] else 'FAIL'}  {entry['name']:<{width}}  {entry['about']}")
    sys.exit(0 if all(entry["ok"] for entry in found) else 1)


def _events(as_json: bool) -> Callable[[str], None] | None:
    """Where the events of a sweep go under --json."""
    if not as_json:
        return None
    from ragen_lab.sweep.stream import to_stdout

    return to_stdout()


def _overrides(texts: list[str] | None) -> dict[str, Any]:
    from ragen_lab.sweep.spec import parse_sets

    return parse_sets(texts or [])


def _finish(finished: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(finished.result), flush=True)
    sys.exit(finished.exit_code)
