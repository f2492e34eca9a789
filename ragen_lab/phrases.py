"""Sentences of the synthetic players that warm-start the tiny model.

Experts state true facts about the state (slots in braces, filled from ``Demonstration.facts``); novices
talk without looking. Both have many phrasings, so that a rising share of one template means that the
model's language narrowed and not merely that it learned to prefer the expert.
"""

from __future__ import annotations

EXPERT: dict[str, tuple[str, ...]] = {
    "frozen_lake": (
        "the goal is {goal} so i go {move}",
        "goal lies {goal} , first step {move}",
        "i see the goal {goal} of me , {move} is safe",
        "heading {goal} , start with {move}",
        "to reach the goal {goal} i move {move}",
        "my target is {goal} , best move {move}",
        "{move} now , because the goal is {goal}",
        "the way leads {goal} , take {move}",
        "need to get {goal} , {move} avoids the holes",
        "path to goal : {goal} , next {move}",
        "looking {goal} for the goal , step {move}",
        "goal direction {goal} , safe tile {move}",
        "walk {move} since the goal waits {goal}",
        "i should travel {goal} , so {move} first",
        "from here the goal is {goal} , choose {move}",
        "the goal sits {goal} , i walk {move}",
        "plan : {goal} to the goal , begin {move}",
        "no hole {move} of me and the goal is {goal}",
        "the goal can be found {goal} , go {move}",
        "must go {goal} , therefore {move}",
        "{goal} is where the goal is , {move} works",
        "safe route {goal} starts with {move}",
        "aim {goal} , move {move}",
        "the map shows the goal {goal} , so {move}",
    ),
    "sokoban": (
        "the box is {box} and the target {target} of it , go {move}",
        "box {box} , target {target} , so {move}",
        "push the box {target} , first {move}",
        "i stand with the box {box} , {move} next",
        "the box must go {target} , start {move}",
        "to push it {target} i move {move}",
        "{move} now , the box is {box}",
        "target lies {target} of the box , take {move}",
        "get behind the box {box} , {move} first",
        "box to the {box} , it needs {target} , step {move}",
        "plan : bring the box {target} , begin {move}",
        "my box is {box} , best move {move}",
        "the box needs to move {target} , so {move}",
        "walk {move} to push the box {target}",
        "from here the box is {box} , choose {move}",
        "aim {target} with the box , move {move}",
        "i see the box {box} , the way is {move}",
        "it has to slide {target} , i go {move}",
        "next {move} , then the box goes {target}",
        "the target waits {target} , push via {move}",
        "box direction {box} , step {move}",
        "{move} brings the box {target}",
        "must push {target} , therefore {move}",
        "the room shows the box {box} , so {move}",
    ),
    "bandit": (
        "{high} pays more than {low}",
        "i pick {high} over {low}",
        "{high} has the higher payoff",
        "the better arm is {high}",
        "{low} is small , {high} is big",
        "take {high} for the large reward",
        "{high} can win much more",
        "choose {high} , not {low}",
        "on average {high} is best",
        "go with {high} this time",
        "{high} wins in the long run",
        "expected value favours {high}",
        "my choice is {high}",
        "prefer {high} to {low}",
        "{low} pays little so {high}",
        "the bold one is {high} here",
        "trust {high} more",
        "{high} should give the most",
        "skip {low} and take {high}",
        "i bet on {high}",
        "{high} looks best to me",
        "large payoff comes from {high}",
        "between {low} and {high} take {high}",
        "reward is higher with {high}",
    ),
}
EXPERT["bandit_rev"] = EXPERT["bandit"]

NOVICE: tuple[str, ...] = (
    "let me just try something",
    "i am not sure what to do",
    "maybe this works",
    "hmm , i will guess",
    "any move is fine for me",
    "i feel lucky today",
    "lets see what happens now",
    "no idea , try it",
    "this might be good",
    "i could do anything here",
    "random choice it is",
    "just keep moving around",
    "who knows , maybe yes",
    "i hope this is right",
    "it does not matter much",
    "time to make a move",
    "some move must work",
    "i will do what i like",
    "perhaps this one",
    "my hand decides for me",
    "try and see",
    "not thinking much now",
    "well , here we go",
    "one guess is as good as another",
)

WORDS: frozenset[str] = frozenset(
    word
    for sentence in (*NOVICE, *(s for sentences in EXPERT.values() for s in sentences))
    for word in sentence.split()
    if not word.startswith("{")
)
