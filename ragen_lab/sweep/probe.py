"""Two iterations of one arm per cost setting, to learn how long a sweep will take before anything like it has run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ragen_lab.config import RunConfig
from ragen_lab.runs import look
from ragen_lab.sweep.estimate import Known, cost_setting, pace_of
from ragen_lab.sweep.plan import Plan, with_estimates
from ragen_lab.sweep.worker import TrialRequest, run_trial
from ragen_lab.track import trial_folder

ITERATIONS = 2  # the first without an evaluation, the second with one
CACHE = "cache"  # of a home: warm starts and reference lines, by content


def probed(plan: Plan, home: Path, say: Callable[[str], None], trainer: str = "ragen_lab.train:train") -> Plan:
    """The plan with estimates from probes, for the pending trials that have no rows of their own.

    The probes run one after the other in a temporary home through the ordinary worker, and are thrown away; the warm
    starts that they need are those of ``home``, and stay in its cache.
    """
    asked: dict[str, list[int]] = {}
    for place, planned in enumerate(plan.trials):
        if not planned.view.done and pace_of(planned.view.rows) is None:
            asked.setdefault(repr(cost_setting(planned.trial.cfg.flat())), []).append(place)
    measured: dict[str, Known] = {}
    with tempfile.TemporaryDirectory(prefix="ragen-probe-") as folder:
        temporary = Path(folder)
        (home / CACHE).mkdir(parents=True, exist_ok=True)
        (temporary / CACHE).symlink_to((home / CACHE).absolute(), target_is_directory=True)
        for number, places in enumerate(asked.values(), start=1):
            trial = plan.trials[places[0]].trial
            say(f"Probe {number} of {len(asked)}: {ITERATIONS} iterations of {trial.arm}.")
            known = _measure(trial.arm, trial.cfg, temporary, say, trainer)
            if known is not None:
                measured |= {plan.trials[place].trial.trial_id: known for place in places}
    return with_estimates(plan, (), measured)


def _measure(arm: str, cfg: RunConfig, home: Path, say: Callable[[str], None], trainer: str) -> Known | None:
    short = cfg.with_overrides(
        {
            "train.iterations": ITERATIONS,
            "eval.every": ITERATIONS,
            "eval.mutual_information_every": ITERATIONS if cfg.eval.mutual_information_every else 0,
            "detect.on_collapse": "continue",
        }
    )
    request = TrialRequest(short.trial_id(), arm, short.seed, short, str(home), trainer=trainer)
    result = run_trial(request)
    if result.status != "finished":
        say(f"The probe of {arm} ended as {result.status}: {result.error} It gives no estimate.")
        return None
    rows = look(trial_folder(home, request.trial_id), short).rows
    return Known(request.trial_id, f"a probe of {ITERATIONS} iterations of {arm}", {}, lambda: pace_of(rows))
