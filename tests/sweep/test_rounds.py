"""Who goes on: worked examples of successive halving, the median rule and racing, without any training."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_lab.sweep.desk import Job
from ragen_lab.sweep.rounds import BELOW_MEDIAN, Candidate, Rounds, state_of


@dataclass
class World:
    """Trials whose level at an iteration is a given function; ``came``: how far each was brought."""

    level_at: Any
    came: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)  # (arm, rung, seeds) as recorded

    def reached(self, trial: Any, until: int) -> bool:
        return self.came.get(trial.trial_id, 0) >= until

    def collapsed(self, trial: Any, until: int) -> bool:
        return False

    def level(self, trial: Any, until: int) -> float | None:
        return self.level_at(trial, until)

    def history(self, trial: Any, until: int) -> dict[int, float]:
        values = {at: self.level_at(trial, at) for at in range(0, until + 1, 2)}
        return {at: value for at, value in values.items() if value is not None}

    def record(self, candidate: Candidate) -> None:
        self.asked.append((candidate.arm, candidate.rung, candidate.seeds))


def candidate(name: str, seeds: int = 1, given: int | None = None, fixed: bool = False) -> Candidate:
    trials = tuple(SimpleNamespace(trial_id=f"{name}-{seed}", arm=name, seed=seed) for seed in range(seeds))
    return Candidate(name, trials, given or seeds, fixed=fixed)  # type: ignore[arg-type]


def play(rounds: Rounds, world: World, workers: int = 1, rng: random.Random | None = None) -> list[tuple[str, int]]:
    """Run every job to its end; (trial, until) in the order of completion."""
    done: list[tuple[str, int]] = []
    running: list[Job] = []
    while True:
        while len(running) < workers and (job := rounds.take()) is not None:
            running.append(job)
        if not running:
            return done
        job = running.pop(rng.randrange(len(running)) if rng else 0)
        until = rounds.rungs[-1] if job.until is None else job.until
        assert world.came.get(job.trial.trial_id, 0) < until, "nothing is computed twice"
        world.came[job.trial.trial_id] = until
        done.append((job.trial.trial_id, until))
        rounds.ended(job.trial.trial_id, failed=False)


def by_rank(trial: Any, until: int) -> float:
    """Arm 'a' best, 'i' worst, at every iteration."""
    return 1 - (ord(trial.arm) - ord("a")) / 10


def asha(names: str, world: World, **more: Any) -> Rounds:
    made = [candidate(name) for name in names]
    return Rounds(made, (2, 6, 18), world, world.record, rule="asha", factor=3, **more)


@pytest.mark.parametrize("order", ["abcdefghi", "ihgfedcba"])
def test_nine_settings_three_rungs(order: str) -> None:
    """9 -> 3 -> 1. Best first: nothing is wasted. Worst first: c, d... had to be promoted on what was known then."""
    world = World(by_rank)
    rounds = asha(order, world)
    play(rounds, world)
    came = {name: world.came[f"{name}-0"] for name in order}
    assert came["a"] == 18  # the best one always comes to the end
    if order == "abcdefghi":
        assert came == {"a": 18, "b": 6, "c": 6, **dict.fromkeys("defghi", 2)}
    else:  # g is the best of i, h, g and goes on, and so forth: without waiting, too many go on, never too few
        assert sum(at >= 6 for at in came.values()) >= 3
    assert {c.arm for c, _ in rounds.resting()} == {name for name, at in came.items() if at < 18}


def test_two_settings_still_see_one_to_the_end() -> None:
    """2 // 3 is none: a small sweep would end with nothing but first rungs."""
    world = World(by_rank)
    play(asha("ba", world), world)
    assert world.came == {"a-0": 18, "b-0": 2}


def test_a_setting_without_a_number_never_goes_on() -> None:
    world = World(lambda trial, until: None if trial.arm in "abc" else by_rank(trial, until))
    play(asha("abcdef", world), world)
    assert {name for name, at in world.came.items() if at > 2} <= {"d-0", "e-0"}
    assert world.came["d-0"] == 18


def test_seeds_of_a_setting_go_together() -> None:
    """No setting has fewer seeds than another at a rung; the mean decides, not the luckiest seed."""

    def level(trial: Any, until: int) -> float:
        return (
            {"a": 0.6, "b": 0.5, "c": 0.4}[trial.arm]
            + (0.5 if (trial.arm, trial.seed) == ("c", 0) else 0)
            - (0.5 if (trial.arm, trial.seed) == ("c", 1) else 0)
        )

    world = World(level)
    made = [candidate(name, seeds=2) for name in "abc"]
    rounds = Rounds(made, (2, 6), world, world.record, rule="asha", factor=3)
    play(rounds, world)
    assert world.came == {"a-0": 6, "a-1": 6, "b-0": 2, "b-1": 2, "c-0": 2, "c-1": 2}


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_restart_decides_as_an_undisturbed_run(cut: int) -> None:
    """Kill after ``cut`` jobs: new rounds from what was recorded (how far each was asked) and from the folders."""
    whole = World(by_rank)
    straight = play(asha("gdaifbhce", whole), whole)
    world = World(by_rank)
    first = asha("gdaifbhce", world)
    for _ in range(min(cut, len(straight))):
        job = first.take()
        assert job is not None
        world.came[job.trial.trial_id] = first.rungs[-1] if job.until is None else job.until
        first.ended(job.trial.trial_id, failed=False)
    first.take()  # one is under way when the driver dies
    again = asha("gdaifbhce", world)
    for made in again.candidates:
        made.rung = max((rung for arm, rung, _ in world.asked if arm == made.arm), default=-1)
    rest = play(again, world)
    assert world.came == whole.came
    assert straight[min(cut, len(straight)) :] == rest


def test_workers_that_end_in_any_order_compute_nothing_twice() -> None:
    for seed in range(20):
        world = World(by_rank)
        rounds = asha("gdaifbhce", world)
        done = play(rounds, world, workers=4, rng=random.Random(seed))
        assert len(done) == len(set(done))
        assert world.came["a-0"] == 18


def test_the_median_rule() -> None:
    """Levels over time 0.1 (d) to 0.4 (a), constant. The fourth has three others; the median of their averages is
    0.3, so that d ends at the first rung; e (0.35) is above and goes on."""
    levels = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1, "e": 0.35}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name) for name in "abcde"]
    rounds = Rounds(made, (4, 8, 12), world, world.record, rule="median", least=3)
    play(rounds, world)
    assert world.came == {"a-0": 12, "b-0": 12, "c-0": 12, "d-0": 4, "e-0": 12}
    assert [c.ended for c in made if c.arm == "d"] == ["below the median of 3 other settings at iteration 4"]


def test_the_median_rule_forgives_a_late_rise() -> None:
    """A setting is judged by its best so far, the others by their averages: one bad evaluation ends nobody."""

    def level(trial: Any, until: int) -> float:
        return {"a": 0.3, "b": 0.3, "c": 0.3}.get(trial.arm) or (0.35 if until == 2 else 0.0)

    world = World(level)
    made = [candidate(name) for name in "abcd"]
    play(Rounds(made, (4, 8), world, world.record, rule="median", least=3), world)
    assert world.came["d-0"] == 8


def test_racing_gives_more_seeds_to_what_can_compete() -> None:
    """Margin 0.05: b is 0.2 below a after one seed and gets no second; c is 0.03 below and gets both others."""
    levels = {"a": 0.6, "b": 0.4, "c": 0.57}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name, seeds=3, given=1) for name in "abc"]
    rounds = Rounds(made, (8,), world, world.record, margin=0.05)
    play(rounds, world)
    assert sorted(world.came) == ["a-0", "a-1", "a-2", "b-0", "c-0", "c-1", "c-2"]
    assert "more than 0.05 below the best setting after 1 of 3 seeds" in str(made[1].ended)


def test_rivals_are_compared_on_the_same_seeds() -> None:
    """a: 0.9 on seed 0, 0.1 on the others. b with 0.5 on seed 0 must be held against a's 0.9, not a's mean."""
    world = World(lambda trial, until: (0.9 if trial.seed == 0 else 0.1) if trial.arm == "a" else 0.5)
    made = [candidate("a", seeds=3, given=3), candidate("b", seeds=3, given=1)]
    play(Rounds(made, (8,), world, world.record, margin=0.05), world)
    assert "b-1" not in world.came


def test_controls_are_never_ended() -> None:
    world = World(by_rank)
    made = [candidate("z", fixed=True), *(candidate(name) for name in "abc")]
    world.level_at = lambda trial, until: -5.0 if trial.arm == "z" else by_rank(trial, until)
    play(Rounds(made, (2, 6), world, world.record, rule="asha", factor=3), world)
    assert world.came["z-0"] == 6


def test_a_failed_trial_holds_up_nobody() -> None:
    world = World(by_rank)
    rounds = asha("abc", world)
    job = rounds.take()
    assert job is not None
    rounds.ended(job.trial.trial_id, failed=True)
    world.level_at = lambda trial, until: None if trial.arm == "a" else by_rank(trial, until)
    play(rounds, world)
    assert "a-0" not in world.came
    assert world.came["b-0"] == 18


def fail_at(trial_id: str, rounds: Rounds, world: World) -> list[tuple[str, int]]:
    """Play to the end; this trial fails each time it is asked for."""
    done = []
    while (job := rounds.take()) is not None:
        failed = job.trial.trial_id == trial_id
        if not failed:
            world.came[job.trial.trial_id] = rounds.rungs[-1] if job.until is None else job.until
            done.append((job.trial.trial_id, world.came[job.trial.trial_id]))
        rounds.ended(job.trial.trial_id, failed=failed)
    return done


@pytest.mark.parametrize("rule", ["asha", "median"])
def test_a_setting_with_a_failed_seed_is_no_result(rule: Any) -> None:
    """b would be the best by far on its other seed: it is not let on, not compared with, and holds up nobody."""
    levels = {"a": 0.2, "b": 0.9, "c": 0.3, "d": 0.4}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name, seeds=2) for name in "abcd"]
    rounds = Rounds(made, (2, 6), world, world.record, rule=rule, factor=3, least=3)
    fail_at("b-1", rounds, world)
    assert [rounds.state(each) for each in made][1] == "failed"
    assert world.came["b-0"] == 2
    went_on = {name for name, at in world.came.items() if at == 6}
    # asha: three came, one of them goes on. median: nobody has three others to be compared with.
    assert went_on == ({"d-0", "d-1"} if rule == "asha" else {"a-0", "a-1", "c-0", "c-1", "d-0", "d-1"})
    assert "b" not in {each.arm for each, _ in rounds.resting()}
    assert made[1].ended is None


def test_a_failed_setting_gives_no_room_to_others() -> None:
    """Five of six came to the rung: one in three of them goes on, and not two."""
    world = World(by_rank)
    fail_at("f-0", asha("fabcde", world), world)
    assert {name for name, at in world.came.items() if at > 2} == {"a-0"}


def test_a_later_call_takes_a_failed_setting_up() -> None:
    world = World(by_rank)
    made = [candidate(name, seeds=2) for name in "abc"]
    fail_at("a-1", Rounds(made, (2, 6), world, world.record, rule="asha", factor=3), world)
    again = Rounds(made, (2, 6), world, world.record, rule="asha", factor=3)
    play(again, world)
    assert world.came["a-0"] == world.came["a-1"] == 6
    assert again.state(made[0]) == "complete"


def test_a_failure_higher_up_leaves_the_lower_rungs_as_they_are() -> None:
    """d fails on its way to the second rung. At the first it is the best of six, so only one more may pass."""
    levels = {"a": 0.3, "b": 0.2, "c": 0.1, "d": 0.9, "e": 0.5, "f": 0.4}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name) for name in "abcdef"]
    rounds = Rounds(made, (2, 6), world, world.record, rule="asha", factor=3)
    while (job := rounds.take()) is not None:
        failed = job.trial.trial_id == "d-0" and job.until is None
        world.came[job.trial.trial_id] = world.came.get(job.trial.trial_id, 0) if failed else job.until or 6
        rounds.ended(job.trial.trial_id, failed=failed)
    assert {name for name, at in world.came.items() if at == 6} == {"a-0", "e-0"}  # a: the best of the first three
    assert rounds.state(made[3]) == "failed"


def test_racing_with_a_failed_second_seed() -> None:
    """a fails at its second seed: it gets no third, and its first is still what the others are held against."""
    levels = {"a": 0.9, "b": 0.5, "c": 0.86}
    world = World(lambda trial, until: 9.0 if trial.trial_id == "a-1" else levels[trial.arm])
    made = [candidate(name, seeds=3, given=1) for name in "abc"]
    rounds = Rounds(made, (8,), world, world.record, margin=0.05)
    fail_at("a-1", rounds, world)
    assert sorted(world.came) == ["a-0", "b-0", "c-0", "c-1", "c-2"]
    assert [rounds.state(each) for each in made] == ["failed", "complete", "complete"]
    assert made[0].ended is None


def test_the_margin_is_part_of_what_can_compete() -> None:
    """0.5 is just 0.25 below 0.75. A setting without a number gets no second seed, even alone."""
    levels = {"a": 0.75, "b": 0.5}
    world = World(lambda trial, until: levels.get(trial.arm))
    made = [candidate(name, seeds=2, given=1) for name in "ab"]
    play(Rounds(made, (8,), world, world.record, margin=0.25), world)
    assert "b-1" in world.came
    play(Rounds([candidate("x", seeds=2, given=1)], (8,), world, world.record), world)
    assert "x-1" not in world.came


def test_who_has_more_seeds_by_now_is_compared_on_the_same_ones() -> None:
    """a came to its end and raced on: its second seed is bad everywhere. At the first rung its first one counts."""
    world = World(
        lambda trial, until: {"a-0": 0.9, "a-1": 0.0}.get(trial.trial_id, {"b": 0.5, "c": 0.4}.get(trial.arm))
    )
    made = [candidate(name, seeds=2, given=1) for name in "abc"]
    made[0].rung, made[0].seeds, world.came = 1, 2, {"a-0": 6, "a-1": 6}
    rounds = Rounds(made, (2, 6), world, world.record, rule="asha", factor=3, margin=1)
    play(rounds, world)
    assert world.came == {"a-0": 6, "a-1": 6, "b-0": 2, "c-0": 2}
    world = World(lambda trial, until: {"a": 0.3, "b": 0.5, "c": 0.4}[trial.arm])
    made = [candidate(name, seeds=2, given=1) for name in "abc"]
    made[0].rung, made[0].seeds, world.came = 1, 2, {"a-0": 6, "a-1": 6}
    play(Rounds(made, (2, 6), world, world.record, rule="asha", factor=3, margin=-1), world)
    assert world.came["b-0"] == 6


def test_the_median_rule_compares_on_the_same_seeds() -> None:
    """The others' second seeds are bad, or under way; d has one seed. By the first seeds it lies below."""
    world = World(lambda trial, until: 0.0 if trial.seed == 1 else {"d": 0.5}.get(trial.arm, 0.8))
    made = [candidate(name, seeds=2, given=1) for name in "abcd"]
    for each in made[:3]:
        each.rung, each.seeds = 1, 2
        world.came |= {f"{each.arm}-0": 6, f"{each.arm}-1": 0 if each.arm == "c" else 6}
    rounds = Rounds(made, (2, 6), world, world.record, rule="median", least=3, margin=-1)
    play(rounds, world)
    assert made[3].ended == "below the median of 3 other settings at iteration 2"
    assert world.came["d-0"] == 2


@pytest.mark.parametrize("names", ["abcdef", "fedcba"])
def test_the_first_seeds_come_first_in_every_rung(names: str) -> None:
    """Nobody goes on before all have come to the first rung, so that the best three of all do."""
    world = World(by_rank)
    made = [candidate(name, seeds=2) for name in names]
    done = play(Rounds(made, (2, 6, 18), world, world.record, rule="asha", factor=2), world)
    assert done[:12] == [(f"{arm}-{seed}", 2) for seed in (0, 1) for arm in names]
    assert done[12:15] == [(f"{arm}-0", 6) for arm in "abc"]
    assert sorted(done[15:18]) == [(f"{arm}-1", 6) for arm in "abc"]
    assert done[18:] == [("a-0", 18), ("a-1", 18)]


def test_the_lowest_rung_comes_first() -> None:
    """a is on its way to the second rung when the driver starts anew; b's second seed is still missing at the first."""
    world = World(by_rank, came={"a-0": 2, "a-1": 2, "b-0": 2})
    made = [candidate(name, seeds=2) for name in "ab"]
    made[0].rung, made[1].rung = 1, 0
    rounds = Rounds(made, (2, 6), world, world.record, rule="asha")
    job = rounds.take()
    assert job is not None
    assert (job.trial.trial_id, job.until) == ("b-1", 2)


def test_who_may_go_on_from_the_higher_rung_does_so_first() -> None:
    """d, e and f have come to the second rung; a, of those at the first, may go on too, but d is nearer to its end."""
    world = World(by_rank, came=dict.fromkeys(["d-0", "e-0", "f-0"], 6) | dict.fromkeys(["a-0", "b-0", "c-0"], 2))
    rounds = asha("defabc", world)
    for place, each in enumerate(rounds.candidates):
        each.rung = int(place < 3)
    jobs = [job for _ in range(2) if (job := rounds.take()) is not None]
    assert [(job.trial.trial_id, job.until) for job in jobs] == [("d-0", None), ("a-0", 6)]


def test_a_search_that_ends_early_sees_one_setting_to_its_end() -> None:
    """That no other one comes is only known when it has been asked for."""
    world, left, over = World(by_rank), [candidate("b"), candidate("a")], []

    def propose() -> Candidate | None:
        over.extend([] if left else [True])
        return left.pop(0) if left else None

    rounds = Rounds(
        [], (2, 6), world, world.record, rule="asha", factor=3, propose=propose, exhausted=lambda: bool(over)
    )
    play(rounds, world)
    assert world.came == {"b-0": 2, "a-0": 6}


def test_a_setting_with_a_numberless_seed_never_goes_on() -> None:
    world = World(lambda trial, until: None if trial.trial_id == "a-1" else by_rank(trial, until))
    made = [candidate(name, seeds=2) for name in "abc"]
    play(Rounds(made, (2, 6), world, world.record, rule="asha", factor=3), world)
    assert {name for name, at in world.came.items() if at == 6} == {"b-0", "b-1"}


def test_the_median_rule_at_the_first_rung_of_all() -> None:
    """Two seeds: all have come to the first rung before one is judged, so that the first arm can be ended too. Who is
    at the median goes on."""
    levels = {"a": 0.1, "b": 0.3, "c": 0.3, "d": 0.3}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name, seeds=2) for name in "abcd"]
    play(Rounds(made, (4, 8), world, world.record, rule="median", least=2), world)
    assert [each.arm for each in made if each.ended] == ["a"]
    assert world.came == {f"{name}-{seed}": 4 if name == "a" else 8 for name in "abcd" for seed in (0, 1)}


def test_controls_begin_with_their_first_seeds() -> None:
    world = World(by_rank)
    made = [candidate("y", seeds=2, fixed=True), candidate("z", seeds=2, fixed=True)]
    more = [candidate("b", seeds=2), candidate("a", seeds=2)]
    left = list(more)
    rounds = Rounds(
        made, (2, 6), world, world.record, rule="asha", factor=3,
        propose=lambda: left.pop(0) if left else None, exhausted=lambda: not left,
    )  # fmt: skip
    done = play(rounds, world)
    controls = [("y-0", 6), ("z-0", 6), ("y-1", 6), ("z-1", 6)]
    assert done == [*controls, ("b-0", 2), ("b-1", 2), ("a-0", 2), ("a-1", 2), ("a-0", 6), ("a-1", 6)]


def test_collapsed_settings_have_come_to_their_end() -> None:
    """Nothing is left of them that a scheduler could end; one that only partly collapsed rests."""
    world = World(by_rank, came={"a-0": 2, "a-1": 2, "b-0": 2, "b-1": 2})
    world.collapsed = lambda trial, until: trial.arm == "a" or trial.seed == 0  # type: ignore[method-assign]
    made = [candidate(name, seeds=2) for name in "ab"]
    for each in made:
        each.rung = 0
    rounds = Rounds(made, (2, 6), world, world.record, rule="asha")
    assert [rounds.state(each) for each in made] == ["complete", "pruned"]
    assert rounds.state(candidate("c")) == "running"
    assert state_of([]) == "running"
    assert state_of(["failed", "open"]) == "failed"


@pytest.mark.parametrize("number", range(60))
def test_any_restart_decides_as_an_undisturbed_run(number: int) -> None:
    """Random sweeps and levels, with proposals or without, stopped after every job: what was recorded is enough."""
    rng = random.Random(number)
    names = "abcdefghij"[: rng.randint(3, 10)]
    rule, given, seeds = rng.choice(["asha", "median"]), rng.choice([0, len(names)]), rng.choice([1, 2, 3])
    first, rungs = rng.randint(1, seeds), (2, 6, 18)
    table = {(f"{name}-{seed}", at): rng.random() for name in names for seed in range(seeds) for at in range(19)}

    def build(world: World, known: dict[str, Candidate]) -> Rounds:
        made = [known.get(name) or candidate(name, seeds, first) for name in names[:given]]
        made += [known[name] for name in names[given:] if name in known]
        left = [name for name in names[given:] if name not in known]

        def propose() -> Candidate | None:
            return candidate(left.pop(0), seeds, first) if left else None

        def record(each: Candidate) -> None:
            world.record(each)
            assert each.arm not in ended or ended[each.arm] == each.ended
            if each.ended:
                ended[each.arm] = each.ended

        return Rounds(
            made, rungs, world, record, propose, lambda: not left,
            rule=rule, factor=rng_factor, least=2, margin=0.2,
        )  # fmt: skip

    def rebuilt(world: World) -> dict[str, Candidate]:
        found = {}
        for arm, rung, count in world.asked:
            found[arm] = candidate(arm, seeds, count)
            found[arm].rung = rung
            why = ended.get(arm)
            found[arm].ended = why if why and why.startswith(BELOW_MEDIAN) else None
        return found

    rng_factor = rng.choice([2, 3])
    ended: dict[str, str] = {}
    whole = World(lambda trial, until: table[trial.trial_id, until])
    straight = play(build(whole, {}), whole)
    assert straight
    for cut in range(len(straight)):
        ended.clear()
        world = World(whole.level_at)
        rounds = build(world, {})
        for _ in range(cut):
            job = rounds.take()
            assert job is not None
            world.came[job.trial.trial_id] = rungs[-1] if job.until is None else job.until
            rounds.ended(job.trial.trial_id, failed=False)
        rounds.take()  # under way when the driver dies
        rest = play(build(world, rebuilt(world)), world)
        assert rest == straight[cut:], f"stopped after {cut} jobs"


@pytest.mark.parametrize("level", [0.1, 0.2, 0.21])
@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_settings_are_not_below_the_median(level: float, seeds: int) -> None:
    """Rounding alone told them apart: at 0.2 throughout, 5 of 8 were ended. The rungs have 2 to 20 evaluations."""
    world = World(lambda trial, until: level)
    made = [candidate(name, seeds) for name in "abcdefgh"]
    play(Rounds(made, tuple(range(2, 40, 2)), world, world.record, rule="median"), world)
    assert [each.ended for each in made] == [None] * 8


def test_what_lies_below_the_median_by_more_than_rounding_ends() -> None:
    world = World(lambda trial, until: 0.2 - (trial.arm == "d") * 1e-6)
    made = [candidate(name) for name in "abcd"]
    play(Rounds(made, (4, 8), world, world.record, rule="median"), world)
    assert [each.arm for each in made if each.ended] == ["d"]


@pytest.mark.parametrize(
    ("best", "seeds", "margin"),
    [(0.4, (0.1, 0.7), 0.0), (0.34, (0.29, 0.29), 0.05)],  # (0.1 + 0.7) / 2 and 0.34 - 0.05 are rounded: < 0.4, > 0.29
)
def test_rounding_keeps_nobody_from_its_next_seed(best: float, seeds: tuple[float, ...], margin: float) -> None:
    world = World(lambda trial, until: (*seeds, 0.0)[trial.seed] if trial.arm == "b" else best)
    made = [candidate("a", seeds=3, given=3), candidate("b", seeds=3, given=2)]
    play(Rounds(made, (8,), world, world.record, margin=margin), world)
    assert made[1].seeds == 3


def test_a_seed_without_a_number_at_one_evaluation_keeps_its_place_at_the_others() -> None:
    """d: 0.9, none, 0.1 and 0.1, 0.1, 0.9 at iterations 0, 2, 4: means of 0.5 at two of them. Moved up, the second
    seed's 0.1 would stand beside the first one's 0.1."""
    odd = {"d-0": {0: 0.9, 2: None, 4: 0.1}, "d-1": {0: 0.1, 2: 0.1, 4: 0.9}}
    world = World(lambda trial, until: odd[trial.trial_id][until], came={"d-0": 4, "d-1": 4})
    rounds = Rounds([candidate("d", seeds=2)], (4, 8), world, world.record, rule="median")
    assert rounds._curve(rounds.candidates[0], 0, 2) == [0.5, 0.5]


def test_an_ended_setting_is_still_compared_with() -> None:
    """d is ended by three others. e (0.25) lies below the median of a, b, c (0.3), and at that of a, b, c, d: 0.25."""
    levels = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1, "e": 0.25}
    world = World(lambda trial, until: levels[trial.arm])
    made = [candidate(name) for name in "abcde"]
    play(Rounds(made, (4, 8), world, world.record, rule="median", least=3), world)
    assert [each.arm for each in made if each.ended] == ["d"]


@pytest.mark.parametrize(("least", "ended"), [(3, True), (4, False)])
def test_a_setting_without_any_number_ends_once_there_is_enough_to_compare_with(least: int, ended: bool) -> None:
    world = World(lambda trial, until: None if trial.arm == "d" else 0.0)
    made = [candidate(name) for name in "abcd"]
    play(Rounds(made, (4, 8), world, world.record, rule="median", least=least), world)
    assert [each.arm for each in made if each.ended] == ["d"] * ended


def test_controls_are_no_rivals_in_a_race() -> None:
    """The control is 0.5 better, and has all its seeds; b, the only one that was proposed, gets its second."""
    world = World(lambda trial, until: 0.9 if trial.arm == "z" else 0.4)
    made = [candidate("z", seeds=2, fixed=True), candidate("b", seeds=2, given=1)]
    play(Rounds(made, (8,), world, world.record, margin=0.05), world)
    assert sorted(world.came) == ["b-0", "b-1", "z-0", "z-1"]
