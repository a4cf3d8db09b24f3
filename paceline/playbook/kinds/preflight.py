"""A phase that asks whether this machine is fit: `paceline preflight CONFIG key=value … --json`, with `snapshot` also what it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline.config.sections import Bool, key
from paceline.files import read_json
from paceline.playbook.pace import short
from paceline.playbook.phase import Phase, Scene, Work, file_digest
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports
from paceline.recipes.job import load_job
from paceline.reports.amounts import counted


class Preflight(Phase):
    """The checks of `paceline preflight`."""

    reports: ClassVar[Reports] = Reports(
        {"failures": "checks that fail", "warnings": "checks that warn", "passed": "checks that are fine", **EVERY}
    )
    takes_settings: ClassVar[bool] = True

    kind: Literal["preflight"] = key(..., "It looks at the machine.")
    config: str | None = key(None, "Recipe or YAML file; null: the playbook's.")
    set: dict[str, Any] = key({}, "Fixed overrides.")
    quick: Bool = key(False, "Only what needs no torch.")
    snapshot: Bool = key(False, "Also write git_sha.txt, collect_env.txt and nvidia_smi.xml.")

    def plan_work(self, scene: Scene) -> Work:
        quick = ["--quick"] if self.quick else []
        place = scene.place("snapshot")
        snapshot = ["--snapshot", str(place)] if self.snapshot else []
        arguments = ["preflight", scene.config, *scene.overrides(), *quick, *snapshot, "--json"]
        identity: dict[str, Any] = {
            "config": scene.config,
            "digest": file_digest(scene.config),
            "settings": dict(scene.settings),
        }
        answer = scene.place("preflight.json")
        identity |= {"quick": self.quick} | ({"snapshot": True} if self.snapshot else {})
        beside = {"snapshot": place} if self.snapshot else {}
        return Work(arguments, answer, {"kind": "preflight"} | identity, answer=answer, beside=beside)

    def check(self, scene: Scene) -> None:
        load_job(scene.config, scene.overrides())

    def read(self, work: Work) -> Outcome:
        checks = read_json(work.place)["checks"]
        count = {status: sum(check["status"] == status for check in checks) for status in ("ok", "warn", "fail")}
        said = [check for check in checks if check["status"] != "ok"]
        evidence = [
            Evidence("checks", f"{count['ok']} ok, {count['warn']} warn, {count['fail']} fail", work.place.name)
        ]
        evidence += [Evidence(f"{c['name']}: {c['status']}", c["found"], c.get("remedy", "")) for c in said]
        results = {"failures": count["fail"], "warnings": count["warn"], "passed": count["ok"]}
        links = {"preflight": Path(work.place)} | dict(work.beside)
        for place in work.beside.values():
            evidence += [
                Evidence(path.name, _first_line(path), f"{place.name}/{path.name}") for path in sorted(place.iterdir())
            ]
        sources = dict.fromkeys(results, f"{short(work.place)}, {counted(len(checks), 'check')}")
        return Outcome(results, evidence, links, sources)


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return next((line.strip() for line in file if line.strip()), "empty")
