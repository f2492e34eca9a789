"""Two-armed bandit in words: one arm pays a little for sure, the other pays much, sometimes.

The arms carry names of everyday meaning, one cautious and one bold. For ``bandit`` the bold name is the high
arm (the name fits the payoff), for ``bandit_rev`` the cautious one is (it contradicts the payoff).
"""

from __future__ import annotations

from random import Random

from ragen_lab.env.base import Demonstration, StepResult, is_eval_seed
from ragen_lab.errors import EnvError
from ragen_lab.sections import BanditRevSection, BanditSection

# (cautious, bold); every name is one lowercase word and occurs once.
TRAIN_PAIRS: tuple[tuple[str, str], ...] = (
    ("librarian", "gambler"),
    ("accountant", "pirate"),
    ("gardener", "daredevil"),
    ("nurse", "gladiator"),
    ("clerk", "bandit"),
    ("tortoise", "cheetah"),
    ("sheep", "wolf"),
    ("cow", "dragon"),
    ("teacup", "rocket"),
    ("bicycle", "racecar"),
    ("pillow", "dynamite"),
    ("umbrella", "lightning"),
    ("pension", "lottery"),
    ("savings", "jackpot"),
    ("harbor", "storm"),
    ("meadow", "volcano"),
    ("candle", "wildfire"),
    ("porridge", "chili"),
    ("lullaby", "thunder"),
    ("anchor", "cannon"),
    ("seatbelt", "parachute"),
    ("monk", "rebel"),
    ("notary", "smuggler"),
    ("snail", "falcon"),
)
EVAL_PAIRS: tuple[tuple[str, str], ...] = (
    ("teacher", "acrobat"),
    ("baker", "stuntman"),
    ("dove", "shark"),
    ("pond", "avalanche"),
    ("slippers", "skateboard"),
    ("broth", "tequila"),
    ("shepherd", "warrior"),
    ("piggybank", "casino"),
)


class Bandit:
    """One choice, then the episode ends. Success = the high arm was chosen, lucky or not."""

    def __init__(self, section: BanditSection):
        self.section = section
        self._cautious_is_high = isinstance(section, BanditRevSection)
        self._arms: tuple[str, str] = ("", "")
        self._high = ""
        self._done = True
        self._chance = Random(0)

    def level(self, seed: int) -> tuple[tuple[str, str], str]:
        """The arms of a level seed in the order of the page, and the name of the high arm."""
        rng = Random(f"bandit level {seed}")
        cautious, bold = rng.choice(EVAL_PAIRS if is_eval_seed(seed) else TRAIN_PAIRS)
        arms = (bold, cautious) if rng.random() < 0.5 else (cautious, bold)
        return arms, cautious if self._cautious_is_high else bold

    def reset(self, seed: int, dynamics: int = 0) -> str:
        self._arms, self._high = self.level(seed)
        self._chance = Random(f"bandit dynamics {seed} {dynamics}")
        self._done = False
        # words stand alone, so that a word tokenizer sees the names without punctuation
        return f"Two arms : {self._arms[0]} and {self._arms[1]}\nChoose one arm"

    def step(self, action: str) -> StepResult:
        if not self._high:
            raise EnvError("bandit: no episode yet; call reset first.")
        if self._done:
            raise EnvError("bandit: step after the end of the episode; call reset first.")
        if action not in self._arms:
            raise EnvError(f"bandit: unknown action {action!r}; allowed: {', '.join(self._arms)}.")
        self._done = True
        success = action == self._high
        draw, reward = self._chance.random(), self.section.low
        if success:
            reward = self.section.high if draw < self.section.chance else 0.0
        return StepResult(f"You chose {action} and it paid {reward:g}", reward, True, success)

    def actions(self) -> tuple[str, ...]:
        if not self._high:
            raise EnvError("bandit: no episode yet; call reset first.")
        return self._arms

    def rules(self) -> str:
        pays_more = self.section.chance * self.section.high > self.section.low
        aim = "pays more on average" if pays_more else "can pay the large reward"
        return (
            "You face two arms of a slot machine, each known by a name. One arm always pays a small reward; "
            "the other pays a large reward with some probability and nothing otherwise. "
            "The names may or may not hint at which is which. "
            f"Choose the arm that {aim}. Your action is the name of the arm; you choose once."
        )

    def demonstrate(self) -> Demonstration:
        """The high arm. Facts: ``high`` and ``low``, the two names. After the end: no actions, no facts."""
        if not self._high:
            raise EnvError("bandit: no episode yet; call reset first.")
        if self._done:
            return Demonstration(())
        low = self._arms[1] if self._arms[0] == self._high else self._arms[0]
        return Demonstration((self._high,), {"high": self._high, "low": low})
