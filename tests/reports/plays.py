"""Playbooks for the tests of reports: a playbook.json as its owner writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def build_play(**more: Any) -> dict[str, Any]:
    """Stopped at the gate of its third phase."""
    phases = [
        phase("P0", "train", "done", about="A few users, 200 steps: does it run at all?", seconds=31.0)
        | {"command": "paceline train sasrec data.max_users=200 --out P0/run", "exit_code": 0}
        | {"evidence": [{"what": "loss", "value": "4.1203", "from": "P0/run/metrics.csv, step 200"}]}
        | {"gate": [{"text": "failures == 0", "verdict": "met", "values": {"failures": 0}, "why": ""}]}
        | {"results": {"failures": 0, "final_loss": 4.1203}, "links": {"run": "P0/run"}},
        phase("P1", "sweep", "done", seconds=95.5, attempts=2)
        | {"command": "paceline sweep P1/plan.yaml --out P1/sweep", "exit_code": 0}
        | {"evidence": [{"what": "winner", "value": "blocks=2 lr=0.001", "from": "P1/sweep/sweep.json"}]}
        | {"links": {"sweep": "P1/sweep", "best": "P1/sweep/best.yaml"}},
        phase("P2", "train", "gate not met", seconds=61.0, reason="1 of 2 conditions does not hold")
        | {"command": "paceline train sasrec model.blocks=2", "exit_code": 0}
        | {"uses": [{"from": "P1.best", "file": "P1/sweep/best.yaml", "key": "model.blocks", "value": 2, "by_hand": 3}]}
        | {
            "gate": [
                {"text": "final_loss < 4.0", "verdict": "met", "values": {"final_loss": 3.77}},
                {
                    "text": "samples_per_s >= 0.92 * baseline.samples_per_s",
                    "verdict": "not met",
                    "values": {"samples_per_s": 812.5, "baseline.samples_per_s": None},
                    "why": "default below compute capability 8",
                },
            ]
        }
        | {
            "tail": ["Traceback (most recent call last):", "  <b>ZeroDivisionError</b>"],
            "settings": {"model.blocks": 2},
        },
        phase("P3", "export", "waiting", about="Optional: inference"),
    ]
    record = {
        "v": 1,
        "name": "p0-p3",
        "about": "Smoke, screen, train",
        "state": "gate not met",
        "reason": "P2: samples_per_s >= 0.92 * baseline.samples_per_s is not met",
        "argv": ["paceline", "play", "p0-p3"],
        "created": 1.79e9,
        "paceline": "0.1.0",
        "machine": {"host": "a", "cores": 2},
        "phases": phases,
    }
    return record | more


def phase(name: str, kind: str, state: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "state": state} | more


def save_play(root: Path, record: dict[str, Any]) -> Path:
    (root / "P0" / "run").mkdir(parents=True)
    (root / "P1" / "sweep").mkdir(parents=True)
    (root / "playbook.json").write_text(json.dumps(record))
    return root
