"""Any Gymnasium environment whose observations are text, as an environment of ours. Needs no gymnasium itself.

On a page: ``env: {name: "ragen_lab.env.gym:TextGym", options: {id: "pkg:Env-v0", actions: [north, south]}}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ragen_lab.env.base import Demonstration, StepResult
from ragen_lab.errors import ConfigError, EnvError


class TextGym:
    """Wraps an object with ``reset(seed=) -> (text, info)`` and ``step(action) -> (text, reward, end, cut, info)``.

    ``env``: such an object; or ``make``: ``module:callable`` that builds one; or ``id``: a Gymnasium name. ``kwargs``
    go to ``make`` or to ``gymnasium.make``. ``actions``: the action words, in the order of a Discrete action space, or
    the texts that ``step`` takes. Left out, the environment's own names of its Discrete actions are used.

    Gymnasium knows one seed: the level seed. So the members of a group share their chance events, and ``dynamics``
    does nothing. Success is ``info["success"]`` or ``info["is_success"]`` where there is one, else an end (not a
    truncation) whose last reward is above ``success_reward``.
    """

    has_expert = False

    def __init__(
        self,
        env: Any = None,
        *,
        id: str | None = None,
        make: str | None = None,
        kwargs: dict[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        rules: str | None = None,
        success_reward: float = 0.0,
    ) -> None:
        if sum(given is not None for given in (env, id, make)) != 1:
            raise ConfigError("env.options", ["env.options: give exactly one of id, make (or env, in Python)."])
        self.env = env if env is not None else _build(id, make, kwargs or {})
        space: Any = getattr(self.env, "action_space", None)
        self._count: int | None = int(space.n) if hasattr(space, "n") else None
        self._first = int(getattr(space, "start", 0))
        self._words = tuple(actions) if actions is not None else self._own_names()
        if self._count is not None and len(self._words) != self._count:
            fault = f"env.options.actions: {len(self._words)} words for an action space of {self._count} actions."
            raise ConfigError("env.options", [fault])
        lowered = [word.strip().lower() for word in self._words]
        if not all(lowered) or len(set(lowered)) < len(lowered):
            raise ConfigError("env.options", ["env.options.actions: the words must be distinct and not empty."])
        self._rules = rules or f"Play the environment. Your actions are: {', '.join(self._words)}."
        self._success_reward = success_reward
        self._open = False
        self._started = False

    def reset(self, seed: int, dynamics: int = 0) -> str:
        answer = self.env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EnvError(f"gym: reset(seed=) gave {type(answer).__name__}; it must give (observation, info).")
        self._open = self._started = True
        return _text(answer[0])

    def step(self, action: str) -> StepResult:
        if not self._open:
            what = "step after the end of the episode" if self._started else "no episode yet"
            raise EnvError(f"gym: {what}; call reset first.")
        if action not in self._words:
            raise EnvError(f"gym: unknown action {action!r}; allowed: {', '.join(self._words)}.")
        given: Any = action if self._count is None else self._first + self._words.index(action)
        answer = self.env.step(given)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise EnvError("gym: step(action) must give (observation, reward, terminated, truncated, info).")
        observation, reward, terminated, truncated, info = answer
        done = bool(terminated) or bool(truncated)
        self._open = not done
        told = info.get("success", info.get("is_success")) if isinstance(info, dict) else None
        won = bool(terminated) and float(reward) > self._success_reward if told is None else bool(told)
        return StepResult(_text(observation), float(reward), done, done and won)

    def actions(self) -> tuple[str, ...]:
        return self._words

    def rules(self) -> str:
        return self._rules

    def demonstrate(self) -> Demonstration:
        """Nobody knows how to play well: no actions."""
        return Demonstration(())

    def _own_names(self) -> tuple[str, ...]:
        inner = getattr(self.env, "unwrapped", self.env)
        if callable(named := getattr(inner, "get_action_meanings", None)):
            return tuple(str(name) for name in named())
        if self._count is None:
            fault = "env.options.actions: the action space is not Discrete, so the action words must be given."
            raise ConfigError("env.options", [fault])
        return tuple(str(self._first + number) for number in range(self._count))


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise EnvError(f"gym: the observation is {type(observation).__name__}, not text; wrap it so that it is.")
    return observation


def _build(id: str | None, make: str | None, kwargs: dict[str, Any]) -> Any:
    if make is not None:
        module, _, name = make.partition(":")
        try:
            return getattr(import_module(module), name)(**kwargs)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError("env.options", [f"env.options.make: cannot build {make!r}: {error}"]) from None
    try:
        gymnasium = import_module("gymnasium")
    except ImportError:
        fault = "env.options.id: needs the package gymnasium; `pip install gymnasium`, or use make."
        raise ConfigError("env.options", [fault]) from None
    try:
        return gymnasium.make(id, **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError("env.options", [f"env.options.id: cannot make {id!r}: {error}"]) from None
