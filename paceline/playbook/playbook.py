"""A playbook as it is written: YAML, with overrides from the command line; unknown keys are refused with the nearest.

    config: sasrec
    phases:
      P0: {kind: train, set: {train.max_steps: 200}, gate: [failures == 0]}
      P1: {kind: sweep, axes: {model.blocks: [1, 2]}, steps: 100}
      P2: {kind: train, use: P1.best}

    load_playbook("p0-p3", ["P1.steps=50", "P2.train.epochs=1", "data.users=500"])

`P1.steps=50` is for one phase, `data.users=500` for all that take a configuration, `config=mine.yaml` for the playbook.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from paceline.config.nearest import nearest
from paceline.config.overrides import parse_overrides
from paceline.config.sections import RunConfig
from paceline.config.shipped import find_shipped, list_shipped
from paceline.config.source import Entry, Layer, read_layer, show
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.playbook.condition import OWN, check_condition, known_sections, read_facts
from paceline.playbook.kinds.catalogue import KINDS
from paceline.playbook.limits import read_limits
from paceline.playbook.phase import Phase
from paceline.playbook.sizes import choose_sizes, compute, is_formula
from paceline.playbook.verdicts import LIMITS
from paceline.recipes.job import load_job

_TOP = ("about", "config", "bound", "set", "sizes", "limits", "phases")
"""what is the playbook's and can be typed"""
_BY_KEY = ("axes", "baseline", "set", "runs", "a", "b")
"""mappings whose keys are keys of a configuration, dots and all"""
_FOLDER = "playbooks"
_IN_FILE = "write it in a playbook of your own, or type single keys"


@dataclass(frozen=True)
class Playbook:
    """Phases in order, and what was typed for them."""

    name: str
    shown: str
    """the file, as messages name it"""
    about: str
    config: str
    set: Mapping[str, Any]
    phases: Mapping[str, Phase]
    origins: Mapping[str, str]
    """`P1.steps` -> where it was said"""
    typed: Mapping[str, Entry] = field(default_factory=dict)
    """configuration keys without a phase"""
    typed_for: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    """phase -> configuration keys that are for it alone"""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """thresholds that gates ask for as `limits.NAME`; null: nobody has set it, and what it would decide is not judged"""
    bound: bool | None = None
    """whether what was done on another machine, or with other code, is done again; None: where a phase judges the others"""

    @property
    def is_bound(self) -> bool:
        return any(phase.judges for phase in self.phases.values()) if self.bound is None else self.bound

    def where(self, name: str, word: str) -> str:
        """Who said what a phase says about a word."""
        return self.origins.get(f"{name}.{word}") or self.origins.get(name) or self.shown

    def by_hand(self, name: str) -> dict[str, Any]:
        """What was typed for a phase, its own before what is for all."""
        phase = self.phases[name]
        general = {key: entry for key, entry in self.typed.items() if phase.takes_settings and key not in phase.ignores}
        return {key: entry.value for key, entry in {**general, **self.typed_for.get(name, {})}.items()}

    def configured(self, name: str) -> dict[str, Any]:
        """The overrides of a phase without its own in the file: the playbook's, and what was typed for all and for it."""
        return {**self.set, **self._typed(name)}

    def typed_words(self, name: str) -> list[str]:
        """What was typed for all and for the phase, to type it again."""
        return [f"{key}={show(value)}" for key, value in self._typed(name).items()]

    def _typed(self, name: str) -> dict[str, Any]:
        return {key: entry.value for key, entry in {**self.typed, **self.typed_for.get(name, {})}.items()}

    def not_for(self, name: str) -> list[str]:
        """What was given for all phases and is not for this one, with the reason."""
        phase = self.phases[name]
        given = [key for key in dict.fromkeys([*self.set, *self.typed]) if phase.takes_settings]
        return [f"{key} is not for {name}: {phase.ignores[key]}" for key in given if key in phase.ignores]

    def settings(self, name: str, used: Mapping[str, Any]) -> dict[str, Any]:
        """The overrides of a phase: the playbook's, its own, what it uses of earlier phases, what was typed."""
        phase = self.phases[name]
        if not phase.takes_settings:
            return {}
        general = {key: value for key, value in self.set.items() if key not in phase.ignores}
        return {**general, **getattr(phase, "set", {}), **used, **self.by_hand(name)}

    def config_of(self, name: str) -> str:
        return getattr(self.phases[name], "config", None) or self.config

    def winner_keys(self, name: str) -> tuple[str, ...]:
        """What a winner of that phase has values for: what it varied, and what it had from an earlier winner."""
        phase = self.phases[name]
        inherited = [key for source in phase.winners() for key in self.winner_keys(source.partition(".")[0])]
        return tuple(dict.fromkeys([*phase.wins_by(), *inherited]))


def shipped_playbooks() -> list[str]:
    """Those that come with the package, by the name to type."""
    return list_shipped(_FOLDER)


def load_playbook(target: str, overrides: Sequence[str] = ()) -> Playbook:
    """The playbook of that name or file; everything that is wrong in it is said at once."""
    typed = parse_overrides(overrides)
    path, shown = find_shipped(_FOLDER, "playbook", _suit(target, typed))
    written = read_layer(path, shown)
    problems = [*written.problems, *typed.problems]
    top, raw, order = _sort_written(written, problems)
    config_keys, own = _sort_typed(typed, raw, top, order, problems)
    if not problems:
        problems += _compute(raw, top, typed, config_keys)
    if problems:
        # What could not be computed is not wrong by itself.
        top, raw = _drop_formulas(top), {name: _drop_formulas(entries) for name, entries in raw.items()}
    gates = [str(entry.value) for entries in raw.values() for key, entry in entries.items() if key == "gate"]
    limits = read_limits(top, typed, gates, problems)
    origins: dict[str, str] = {}
    phases: dict[str, Phase] = {}
    for name in order:
        phase = _build_phase(name, raw[name], origins, problems)
        if phase is not None:
            phases[name] = phase
            problems += check_condition(phase.when, origins[f"{name}.when"]) if phase.when is not None else []
    config = top.pop("config", None)
    if config is None or not isinstance(config.value, str):
        problems.append(Problem("the playbook does not say what it trains", shown, "add a line `config: sasrec`"))
    bound = top.pop("bound", Entry(None, ""))
    if bound.value not in (None, True, False):
        what = f"bound={show(bound.value)} is neither true nor false"
        problems.append(Problem(what, bound.origin, "write bound: true, or leave it out"))
    if not order:
        problems.append(Problem("the playbook has no phases", shown, "add `phases: {P0: {kind: train}}`"))
    if problems:
        raise ConfigError(problems=problems)
    assert config is not None
    about = top.pop("about", Entry("", "")).value
    fixed = {key.removeprefix("set."): entry.value for key, entry in top.items() if key.startswith("set.")}
    words = (path.stem, shown, str(about), config.value)
    return Playbook(*words, fixed, phases, origins, config_keys, own, limits, bound.value)


def _suit(target: str, typed: Layer) -> str:
    """A recipe may have one of its own: `throughput` with config=csa is csa-throughput, because its axes are others."""
    config, names = typed.entries.get("config"), shipped_playbooks()
    if target not in names or config is None or not any(name.endswith(f"-{target}") for name in names):
        return target
    with contextlib.suppress(PacelineError):  # what is wrong with it is said with everything else
        own = f"{load_job(str(config.value), environ={}).recipe.name}-{target}"
        return own if own in names else target
    return target


def _compute(raw: dict[str, Raw], top: Raw, typed: Layer, general: Raw) -> list[Problem]:
    """Puts values in the place of formulas, in phases and thresholds; without any the configuration is not even looked at."""
    places = [(entries, key) for entries in (*raw.values(), top) for key in entries if is_formula(entries[key].value)]
    sizes = {key: entry for key, entry in top.items() if key.partition(".")[0] == "sizes"}
    asked = {key: entry for key, entry in typed.entries.items() if key.startswith("sizes.")}
    if not places and not sizes and not asked:
        return []
    config = top.get("config")
    fixed = {key.removeprefix("set."): entry for key, entry in top.items() if key.startswith("set.")}
    words = [f"{key}={show(entry.value)}" for key, entry in {**fixed, **general}.items()]
    try:
        facts = read_facts(str(config.value) if config else "", words)
        known = facts | (choose_sizes(sizes, asked, facts) if sizes or asked else {})
        for entries, key in places:
            entry = entries[key]
            entries[key] = Entry(compute(entry.value, known, entry.origin), entry.origin)
    except PacelineError as error:
        return list(error.problems)
    return []


def _drop_formulas(entries: Raw) -> Raw:
    """Without them: a threshold is unset then, a key of a phase has its default."""
    return {
        key: Entry(None, entry.origin) if key.startswith(LIMITS) and is_formula(entry.value) else entry
        for key, entry in entries.items()
        if key.startswith(LIMITS) or not is_formula(entry.value)
    }


Raw = dict[str, Entry]
"""What a phase says: dotted key below the phase -> value and origin."""


def _sort_written(layer: Layer, problems: list[Problem]) -> tuple[Raw, dict[str, Raw], list[str]]:
    top: Raw = {}
    raw: dict[str, Raw] = {}
    for key, entry in layer.entries.items():
        head, _, rest = key.partition(".")
        if head == "phases":
            name, _, inside = rest.partition(".")
            if not name or not inside:
                what = "a phase is a mapping with a kind" if name else "`phases` is a mapping of phases"
                problems.append(Problem(what, entry.origin, "write P0: {kind: train}"))
                continue
            raw.setdefault(name, {})[inside] = entry
        elif head in _TOP:
            top[key] = entry
        else:
            close = nearest(head, _TOP)
            do = f"write {close}" if close else f"use one of {', '.join(_TOP)}"
            what = f"there is no key {key} in a playbook" + (f"; did you mean {close}?" if close else "")
            problems.append(Problem(what, entry.origin, do))
    sections = {*RunConfig.model_fields, "model", "loss", "params", "command", "config", "playbook", *OWN}
    for name in raw:
        origin = next(iter(raw[name].values())).origin
        if name in sections or not name.replace("_", "a").isalnum() or not name[0].isalpha():
            why = "that is a section of configurations" if name in sections else "that is not one word"
            what = f"a phase cannot be called {name}: {why}"
            problems.append(Problem(what, origin, "call it P0, A or smoke"))
    return top, raw, list(raw)


def _sort_typed(
    layer: Layer, raw: dict[str, Raw], top: Raw, order: list[str], problems: list[Problem]
) -> tuple[dict[str, Entry], dict[str, dict[str, Entry]]]:
    """What was typed goes to where it belongs: the phase's own keys and the plan's into `raw`, the playbook's into `top`."""
    general: dict[str, Entry] = {}
    own: dict[str, dict[str, Entry]] = {}
    for key, entry in layer.entries.items():
        head, _, rest = key.partition(".")
        if key in ("config", "bound"):
            top[key] = entry
        elif head in OWN and rest:
            continue
        elif key in _TOP:
            names = [name.partition(".")[2] for name in top if name.startswith(f"{key}.")]
            do = f"type {key}.{names[0]}=NUMBER" if names else f"type {key}.NAME=…, one at a time"
            problems.append(Problem(f"{key} is many values, not one", entry.origin, do if key in OWN else _IN_FILE))
        elif head in raw and rest:
            kind = KINDS.get(str(raw[head].get("kind", Entry("", "")).value))
            word = rest.partition(".")[0]
            words = {*kind.model_fields, *kind.plan_keys} if kind is not None else set()
            if kind is not None and word not in words and kind.takes_settings:
                close = (
                    nearest(word, words - {"plan"}) if word == rest else None
                )  # a key of a configuration has a section
                if close is not None:
                    what = f"there is no key {key}; did you mean {head}.{close}?"
                    problems.append(Problem(what, entry.origin, f"write {head}.{close}"))
                else:
                    own.setdefault(head, {})[rest] = entry
                continue
            # A whole value replaces whatever was written below it.
            for below in [name for name in raw[head] if name.startswith(f"{rest}.") or rest.startswith(f"{name}.")]:
                del raw[head][below]
            raw[head][rest] = entry
        elif head[:1].isupper() or (nearest(head, order) and rest and head not in known_sections()):
            close = nearest(head, order)
            do = f"write {close}.{rest}" if close else f"use one of {', '.join(order)}"
            problems.append(Problem(f"there is no phase {head}", entry.origin, do))
        else:
            general[key] = entry
    return general, own


def _build_phase(name: str, raw: Raw, origins: dict[str, str], problems: list[Problem]) -> Phase | None:
    said = raw.get("kind")
    origins[name] = next(iter(raw.values())).origin
    if said is None or said.value not in KINDS:
        close = nearest(str(said.value), KINDS) if said is not None else None
        what = f"{name} has no kind" if said is None else f"{name}.kind={show(said.value)} is no kind of phase"
        do = f"write kind: {close}" if close else f"write kind: and one of {', '.join(KINDS)}"
        problems.append(Problem(what, said.origin if said else origins[name], do))
        return None
    kind = KINDS[said.value]
    values: dict[str, Any] = {}
    own = [word for word in kind.model_fields if word != "plan"]
    before = len(problems)
    for key, entry in raw.items():
        word, _, rest = key.partition(".")
        origins.setdefault(f"{name}.{word}", entry.origin)
        if word in kind.plan_keys:
            _put(values.setdefault("plan", {}), word, rest, entry.value)
        elif word in own:
            _put(values, word, rest, entry.value)
        else:
            close = nearest(word, [*own, *kind.plan_keys])
            what = f"there is no key {name}.{word} in a phase of kind {said.value}"
            what += f"; did you mean {close}?" if close else ""
            more = ", or a key of a sweep's plan (docs/sweeps.md)" if kind.plan_keys else ""
            do = f"write {close}" if close else f"use one of {', '.join(own)}{more}"
            problems.append(Problem(what, entry.origin, do))
    if len(problems) > before:
        return None
    try:
        return kind.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problems += [_wrong(name, detail, origins) for detail in error.errors()]
        return None


def _put(tree: dict[str, Any], word: str, rest: str, value: Any) -> None:
    if not rest:
        tree[word] = value
        return
    branch = tree.setdefault(word, {})
    if not isinstance(branch, dict):
        branch = tree[word] = {}
    if word in _BY_KEY:
        branch[rest] = value
        return
    head, _, below = rest.partition(".")
    _put(branch, head, below, value)


def _wrong(name: str, detail: Any, origins: Mapping[str, str]) -> Problem:
    path = [str(part) for part in detail["loc"]]
    word = path[0] if path else "kind"
    if detail["type"] == "missing":
        return Problem(f"{name}.{word} is missing", origins[name], f"add `{word}:` to the phase")
    shown = (
        show(detail["input"])
        if isinstance(detail["input"], str | int | float | bool | list | None)
        else "what is given"
    )
    what = f"{name}.{word}={shown}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    return Problem(what, origins.get(f"{name}.{word}", origins[name]), "give another value")
