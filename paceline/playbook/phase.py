"""What every phase is: what its YAML may say, what it is shown, what it asks to be run. The kinds are in kinds/.

A phase plans (no side effect), is run as a command of Paceline, and is read back from the files that the command left.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict

from paceline.config.sections import Bool, Section, key
from paceline.config.source import show
from paceline.playbook.results import Outcome, Reports
from paceline.playbook.state import PhaseRecord

Words = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""One word or a list of them."""

ANY = "any"


def _by_result(value: Any) -> Any:
    """Lines without a name are for whatever failed."""
    named = value if isinstance(value, dict) else {ANY: value}
    return {name: [lines] if isinstance(lines, str) else lines for name, lines in named.items()}


Remedies = Annotated[dict[str, list[str]], BeforeValidator(_by_result)]
"""Result that was missed, or any -> commands to type."""

UNKNOWN = "<{}>"
"""What stands for a value that an earlier phase will find: in --dry-run, and while a playbook is checked."""
_UNKNOWN = re.compile(r"<\w+\.\w+>")


@dataclass(frozen=True)
class Scene:
    """What a phase is shown when it plans."""

    name: str
    """of the phase"""
    root: Path
    """the phase's own directory; nothing in it is ever deleted"""
    number: int
    """1, or higher where it is done again with other settings, or elsewhere: then in another directory"""
    config: str
    """the recipe or YAML file to begin with"""
    settings: Mapping[str, Any]
    """dotted key -> value, everything that was set, used and typed"""
    used: Collection[str] = ()
    """those of them that come from an earlier phase"""
    earlier: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    """earlier phase -> its links"""
    cases: Sequence[Mapping[str, Any]] = ()
    """for `use: A.top2`: the leading cases of that phase"""
    baseline: Mapping[str, Any] | None = None
    """of the phase whose cases these are"""
    records: Sequence[PhaseRecord] = ()
    """where the phases before this one stand: for a phase that judges them"""
    moves: int = 0
    """how often it was begun anew on another machine or with other code"""

    def place(self, word: str) -> Path:
        """A directory of this phase that no other settings have written to."""
        return self.root / (word if self.number == 1 else f"{word}-{self.number}")

    def overrides(self) -> list[str]:
        return [f"{name}={show(value)}" for name, value in self.settings.items()]

    def without(self, keys: Collection[str]) -> Scene:
        """Without these settings."""
        kept = {name: value for name, value in self.settings.items() if name not in keys}
        return dataclasses.replace(self, settings=kept)

    def without_unknown(self) -> Scene:
        """Without what earlier phases will only find: what is left can be checked now."""
        known = {name: value for name, value in self.settings.items() if not _is_unknown(value)}
        cases = [case for case in self.cases if not any(_is_unknown(value) for value in case.values())]
        return dataclasses.replace(self, settings=known, cases=cases)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and _UNKNOWN.fullmatch(value) is not None


@dataclass(frozen=True)
class Work:
    """What is to be run for a phase."""

    arguments: Sequence[str]
    """of the `paceline` command; empty: nothing is run, and the gate looks at earlier phases alone"""
    place: Path
    """what the command writes"""
    identity: Mapping[str, Any]
    """what makes this work this work: done with another one, it is done again"""
    files: Mapping[Path, str] = field(default_factory=dict)
    """what the command reads and this playbook writes"""
    removed: Sequence[Path] = ()
    """what an earlier start wrote, and this one does not"""
    answer: Path | None = None
    """where the command's standard output, one JSON object, is kept; None: it goes to the terminal"""
    beside: Mapping[str, Path] = field(default_factory=dict)
    """what of earlier phases it is read together with"""

    def fingerprint(self, root: Path) -> str:
        """Of its identity; what lies in the playbook's directory is named from there, so that it may be moved as a whole."""
        named = _name_from(root, dict(self.identity))
        text = json.dumps(named, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def _name_from(root: Path, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _name_from(root, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_name_from(root, inner) for inner in value]
    return value.removeprefix(f"{root}/") if isinstance(value, str) else value


class Phase(Section, ABC):
    """Base of all kinds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    reports: ClassVar[Reports]
    trains: ClassVar[bool] = False
    """whether it leaves a run that later phases may take"""
    judges: ClassVar[bool] = False
    """whether it says what all others came to: it is done in every start anew"""
    takes_settings: ClassVar[bool] = False
    """whether overrides without a phase are for it, too"""
    plan_keys: ClassVar[tuple[str, ...]] = ()
    """keys that are not the phase's own: they are collected in `plan`"""
    ignores: ClassVar[Mapping[str, str]] = {}
    """keys that are not for it where they are given for all phases -> why"""

    kind: str = key(..., "What it does: preflight, train, sweep, compare and so on.")
    about: str = key("", "One sentence for the page.")
    enabled: Bool = key(True, "false: it is skipped unless asked for.")
    gate: Words = key([], "Conditions on the results; all must hold, or the playbook stops.")
    required: Bool = key(True, "false: where it fails, the playbook goes on with what does not need it.")
    when: str | None = key(None, "A condition over the configuration, world_size and num_gpus; else it is skipped.")
    otherwise: str = key("", "The reason to skip it with, where `when` does not hold.")
    numbers: Words = key([], "Results that an acceptance table lists besides those of the gate.")
    remedy: Remedies = key(
        {},
        "Commands to type where it fails, all or by the result that was missed; {run}, {config} and {place} are filled in.",
    )

    unmeasured: Remedies = key(
        {}, "What to type where a result could not be measured, by its name; in place of remedy."
    )

    def trained(self) -> dict[str, str]:
        """Its own key -> the earlier phase that it names, and whose run is taken."""
        return {}

    def winners(self) -> list[str]:
        """`P1.best`, `A.top2`: whose results become settings here, the first that is there."""
        return []

    @abstractmethod
    def plan_work(self, scene: Scene) -> Work:
        """What to run; no side effect."""

    def check(self, scene: Scene) -> None:
        """Raises whatever the command would refuse, as far as it can be known before anything starts."""

    @abstractmethod
    def read(self, work: Work) -> Outcome:
        """What the command left."""

    def find_unfinished(self, work: Work) -> str | None:
        """Why the work is not done, although its command ended well; None: it is."""
        return None

    def silent(self) -> Mapping[str, str]:
        """Names, or prefixes, that its kind reports and it will not, as it is written -> what would make it."""
        return {}

    def wins_by(self) -> tuple[str, ...]:
        """The keys that a winner of this phase has values for; empty where it has no winner."""
        return ()

    def criteria(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(condition, why) besides the gate."""
        return []


class Successor(Phase):
    """Base of the kinds whose settings may come from the winner of an earlier phase."""

    use: Words = key([], "Whose winner, P1.best; of a list the first one that ran counts.")
    runs: dict[str, str] = key({}, "Keys that name a run -> the earlier phase whose run they get.")

    def winners(self) -> list[str]:
        return list(self.use)


def file_digest(config: str) -> str:
    """Of a configuration's file; empty for a name."""
    path = Path(config)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
