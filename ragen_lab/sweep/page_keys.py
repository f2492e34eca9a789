"""The keys of a sweep page, and what is wrong with them one by one."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ragen_lab.config import RunConfig, suggest
from ragen_lab.sections import Section, knob
from ragen_lab.sweep.search_page import AXIS_KINDS, Axis, BudgetSection, Range, SchedulerSection, SearchSection

MOST_SEEDS = 1000
MOST_TRIALS = 10_000  # combinations times seeds; to resolve so many takes some ten seconds
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
NAME_WORDS = "letters, digits, '_', '-' and '.', a letter or digit first, 100 at most"
Finding = Annotated[int, Field(ge=1, le=6)]
SeedNumber = Annotated[int, Field(ge=0, lt=2**31)]


class ResourcesSection(Section):
    cpus: float = knob(1.0, "CPU cores per trial.", gt=0)
    gpus: float = knob(0.0, "GPUs per trial; fractions share one. 0 hides the GPUs from a trial.", ge=0)
    memory_gb: float | None = knob(
        None, "Memory of a trial's process at most, in 10^9 bytes; one that takes more is ended and retried.", gt=0
    )
    hang_minutes: float | None = knob(
        None, "A trial without a new iteration for so long is ended and retried from its checkpoint.", gt=0
    )


class ConstraintSection(Section):
    require: str = Field(min_length=1, description="A comparison over knobs that every arm keeps.")
    otherwise: Literal["drop", "fail"] = knob("drop", "An arm that breaks it is left out ('drop') or a fault ('fail').")


class SweepPage(Section):
    """The keys of a sweep page."""

    name: str = Field(pattern=NAME, description="Letters, digits, '_', '-' and '.'; the default is the file's name.")
    base: str | None = knob(None, "The page that every arm starts from, relative to this page.", min_length=1)
    include: str | list[str] = knob([], "Other sweep pages, relative to this one, whose arms and axes join.")
    findings: list[Finding] = knob([], "Which claims (1 to 6) these runs can speak to.")
    design: Literal["grid", "one_at_a_time", "list"] = knob(
        "grid",
        "'grid' takes all combinations of the axes; 'one_at_a_time' the first value of every axis as the base arm, and "
        "arms that change one axis each; 'list' the settings as they are written.",
    )
    axes: dict[str, Axis] = knob({}, "Dotted knob -> values; for a search also a range {low, high, log, step}.")
    zip: list[list[str]] = knob([], "Groups of axes that are walked together: first values, second values, ...")
    when: dict[str, dict[str, Any]] = knob({}, "Axis -> knobs and the values (one or a list) where it applies.")
    settings: list[dict[str, Any]] = knob([], "Arms of design 'list': the knobs that each changes.")
    arms: dict[str, dict[str, Any]] = knob({}, "Named arms beside the axes: name -> knobs that they change.")
    ties: dict[str, str | int | float] = knob({}, "Dotted knob -> arithmetic over other knobs.")
    constraints: list[str | ConstraintSection] = knob([], "Comparisons over knobs that every arm keeps.")
    seeds: SeedNumber | list[SeedNumber] = knob(1, "Replicates per arm: how many, or which seeds.")
    search: SearchSection = SearchSection()
    scheduler: SchedulerSection = SchedulerSection()
    on_collapse: Literal["stop", "continue"] | None = knob(
        None, "'stop' ends collapsed runs, 'continue' only logs alarms; default: the base's detect.on_collapse."
    )
    resources: ResourcesSection = ResourcesSection()
    budget: BudgetSection = BudgetSection()
    accept: dict[str, str] = knob({}, "Rule of the design check -> why its warnings are accepted here.")

    def levels(self) -> dict[str, list[Any]]:
        """The axes as lists of values; of a range, its ends."""
        return {path: [axis.low, axis.high] if isinstance(axis, Range) else axis for path, axis in self.axes.items()}


# Words of the design that this version does not act on: told apart from plain mistakes.
_NOT_BUILT = {"on_collapse": ("rollback",)}
# Keys with more than one form: pydantic tells a fault for each form, a reader wants one.
_FORMS = {
    "seeds": "give a number of replicates (at least 1), or a list of whole seeds from 0",
    "include": "give the path of a sweep page, or a list of paths",
    "constraints": "give a list of comparisons, for example 'rollout.prompts * rollout.responses == 128', each as a "
    "text or as {require: text, otherwise: drop or fail}",
    "ties": "give arithmetic over knobs, for example 128 // rollout.responses",
}
HERE = {"seed": "seeds", "detect.on_collapse": "on_collapse"}  # knobs that the page itself sets


def is_sweep_page(tree: Mapping[str, Any]) -> bool:
    """Whether a page is meant as a sweep: it has a key that only sweep pages have.

    ``base`` alone does not tell: an experiment page may name one beside its sections.
    """
    keys = {key for key in tree if key in SweepPage.model_fields}
    if keys - {"base", "name"}:
        return True
    return bool(keys) and not any(key in RunConfig.model_fields for key in tree)


def read_keys(tree: dict[str, Any]) -> tuple[SweepPage, list[str], frozenset[str]]:
    """(the validated page, its faults, the places that it lacks because of them, for ``lost``).

    As little as possible is left out at a fault, so that the rest can be looked at too.
    """
    tree = json.loads(json.dumps(tree, default=str))  # no value is then shared by two places, as deepcopy would keep
    faults: list[str] = []
    broken: set[str] = set()
    while True:
        try:
            return SweepPage.model_validate(tree), faults, frozenset(broken)
        except ValidationError as error:
            items = error.errors()
        for item in items:
            head = str(item["loc"][0])
            fault = _form_fault(head, item, tree) if head in _FORMS else _fault(item)
            if fault not in faults:
                faults.append(fault)
        before = copy.deepcopy(tree)
        broken |= {_leave_out(tree, item["loc"]) for item in items}
        if tree == before:  # a mapping where there should be none has nothing at that place
            broken |= {_leave_out(tree, item["loc"][:1]) for item in items}
        tree.setdefault("name", "unnamed")


# What stands for an entry of a list that is at fault: the others keep their places, and it asks for nothing.
_HARMLESS: dict[str, Any] = {"settings": {}, "constraints": "0 == 0"}


def _leave_out(tree: dict[str, Any], loc: tuple[int | str, ...]) -> str:
    """Take the key or entry at fault out of the page; its place."""
    head, rest = str(loc[0]), loc[1:]
    held = tree.get(head)
    place = f"{head}.{rest[0]}" if rest else head
    if isinstance(held, list) and rest and head in _HARMLESS:
        held[int(rest[0])] = copy.copy(_HARMLESS[head])
    elif isinstance(held, dict) and rest:
        held.pop(str(rest[0]), None)
    elif head != "search" or not isinstance(held, dict):
        tree.pop(head, None)
        place = head
    elif "trials" in held:  # a rule between the keys of the search; the other one is that it needs trials
        held.pop("sampler", None)
    if head == "search":
        _stay_a_search(tree)
    return place


def _stay_a_search(tree: dict[str, Any]) -> None:
    """A page with a faulty search is judged as the search that it is: a grid would have other faults."""
    section, axes = tree.setdefault("search", {}), tree.get("axes")
    section.setdefault("trials", 1)
    if "kind" not in section and isinstance(axes, dict) and any(isinstance(axis, dict) for axis in axes.values()):
        section["kind"] = "random"


def lost(broken: Set[str], key: str, name: str | None = None) -> bool:
    """Whether something that the page says under ``key`` (there: ``name``) could not be read: that it is missing is
    then no fault of its own."""
    if name is not None:
        return not broken.isdisjoint({"include", key, f"{key}.{name}"})
    return any(place in ("include", key) or place.startswith(f"{key}.") for place in broken)


def _form_fault(head: str, item: Any, tree: Mapping[str, Any]) -> str:
    """One fault for a key of several forms; for an entry of a list or a mapping, with its place."""
    path, got = head, tree[head]
    if head in ("constraints", "ties") and len(item["loc"]) > 1:
        place = item["loc"][1]
        path, got = f"{head}.{place}", got[place]
    return f"{path}: got {got!r}; {_FORMS[head]}."


def _fault(item: Any) -> str:
    section = _section_of(item["loc"])
    number = section is Range and item["loc"][-1] in ("float", "int")  # told for each of the two
    loc = item["loc"][:-1] if number else item["loc"]
    parts = [str(part) for part in loc if part not in AXIS_KINDS]
    path, got = ".".join(parts), item.get("input")
    if isinstance(got, str) and got in _NOT_BUILT.get(path, ()):
        return f"{path}: {got!r} is not built in this version; allowed: {_allowed(path)}."
    if item["type"] == "extra_forbidden":
        fields = list(section.model_fields)
        hint = suggest(parts[-1], fields)
        where = ""
        if section is SweepPage and path in RunConfig.model_fields:
            where = " Knobs of a run belong into the base page, or under axes or arms."
        return f"{path}: unknown key.{hint}{where} Allowed here: {', '.join(fields)}."
    if item["type"] == "literal_error":
        return f"{path}: got {got!r}; allowed: {_allowed(path) or item['ctx']['expected']}."
    if path == "name" and isinstance(got, str):
        return f"name: got {got!r}; {NAME_WORDS}."
    if item["type"] == "value_error":  # a sentence of ours
        told = str(item["ctx"]["error"])
        inner = told.partition(":")[0]
        return (
            f"{path}.{told}." if path == "search" and inner in section.model_fields else f"{path}: got {got!r}; {told}."
        )
    if section is not SweepPage and len(parts) == 1:
        return f"{path}: got {got!r}; it is a section and holds keys: {', '.join(section.model_fields)}."
    message = "give a number" if number else item["msg"][0].lower() + item["msg"][1:]
    field = section.model_fields.get(parts[-1])
    meaning = field.description if field and field.description else _describe(path)
    return f"{path}: got {got!r}; {message.replace('input ', '', 1)}. Its meaning: {meaning}"


def _section_of(loc: tuple[int | str, ...]) -> type[Section]:
    """The section that a place is in: a range of an axis, a section of the page, or the page."""
    if "range" in loc:
        return Range
    section = SweepPage.model_fields[str(loc[0])].annotation if str(loc[0]) in SweepPage.model_fields else None
    return section if isinstance(section, type) and issubclass(section, Section) else SweepPage


def _allowed(path: str) -> str:
    """The words that a key takes; "" where it takes no particular ones."""
    section: Any = SweepPage
    for part in path.split("."):
        section = getattr(section, "model_fields", {})[part].annotation
    words = re.findall(r"'([a-z0-9_]+)'", str(section))
    return ", ".join(words)


def _describe(path: str) -> str:
    section: Any = SweepPage
    description = "a key of the sweep page."
    for part in path.split("."):
        field = getattr(section, "model_fields", {}).get(part)
        if field is None:
            break
        description, section = field.description or description, field.annotation
    return description
