"""Stands for `paceline` in a playbook's child processes: the same files as train, sweep and the others leave, without torch.

HOLD=<word>:<count> in the environment makes it wait, for ever, after so many trials (sweep) or steps (train): somebody kills it there.
FAIL=<word> makes that command end with exit code 4; `trial`, `stop` and `unfit` are other ways to end. Every call is noted in the file that CALLS names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from paceline.config.dump import dump_config
from paceline.files import LineWriter, read_records, write_json, write_text
from paceline.launch.claim import AlreadyFinished, Claim, claim_run
from paceline.recipes.job import load_job
from paceline.sweep.matrix import Case, build_matrix
from paceline.sweep.plan import load_plan
from paceline.telemetry.events import EventLog
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS, Table

STEPS = 4
LOSSES = (5.0, 4.5, 4.0, 3.5)


def hold(word: str, count: int) -> None:
    if os.environ.get("HOLD") == f"{word}:{count}":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


def train(target: str, words: list[str], out: Path) -> int:
    job = load_job(target, words)
    identity = job.identity()
    claim = claim_run(out, job.describe_run(sys.argv, identity), 2)
    if isinstance(claim, AlreadyFinished):
        return 0
    try:
        return _train(claim, out)
    finally:
        claim.release()


def _train(claim: Claim, out: Path) -> int:
    progress = out / "steps.jsonl"
    begun = len(read_records(progress))
    events = EventLog(claim.layout.events, "rank 0", claim.attempt)
    events.write("plan", start_step=begun, total_steps=STEPS, objective={"metric": "ndcg_10", "direction": "max"})
    table, lines = Table(claim.layout.metrics, METRICS_COLUMNS), LineWriter(progress)
    for step in range(begun + 1, STEPS + 1):
        row = {"attempt": claim.attempt, "step": step, "samples": 10 * step, "loss": LOSSES[step - 1]}
        table.write(row | {"samples_per_s": 100.0 + step, "step_ms": 10.0, "memory_gib": 0.5})
        lines.write_record({"step": step, "attempt": claim.attempt})
        hold("train", step)
    table.close()
    lines.close()
    if os.environ.get("FAIL") == "stop":
        claim.finish("stopped", "stop_command", STEPS, 0)
        return 0
    if os.environ.get("FAIL") == "train":
        claim.finish("failed", "RankLostError", STEPS, 4)
        print("RankLostError: rank 1 died", file=sys.stderr)
        return 4
    validation = Table(claim.layout.validation, (*VALIDATION_COLUMNS, "hr_10", "ndcg_10", "time"))
    for split in ("validation", "test"):
        row = {"attempt": claim.attempt, "step": STEPS, "split": split, "num_samples": 9, "hr_10": 0.5, "ndcg_10": 0.3}
        validation.write(row)
    validation.close()
    events.write("baseline", split="test", name="popularity", num_samples=9, metrics={"ndcg_10": 0.1, "hr_10": 0.2})
    events.close()
    claim.finish("finished", "length", STEPS, 0)
    return 0


def sweep(plan_file: str, out: Path) -> int:
    matrix = build_matrix(load_plan(plan_file))
    out.mkdir(parents=True, exist_ok=True)
    lines = LineWriter(out / "ledger.jsonl")
    done = {record["case"] for record in read_records(out / "ledger.jsonl")}
    for number, case in enumerate((case for case in matrix.cases if case.name not in done), len(done) + 1):
        status = "failed" if os.environ.get("FAIL") == "trial" and number == 2 else "ok"
        lines.write_record({"case": case.name, "status": status, "pid": os.getpid()})
        hold("sweep", number)
    lines.close()
    records = read_records(out / "ledger.jsonl")
    statuses = {record["case"]: record["status"] for record in records}
    order = [case for case in reversed(matrix.cases) if statuses[case.name] == "ok"]
    best = next((case for case in order if case.name == os.environ.get("WINNER")), order[0])
    order = [best, *(case for case in order if case is not best)]
    write_text(out / "best.yaml", dump_config(best.job.config))
    trials = [record | {"is_counted": True} for record in records]
    write_json(
        out / "sweep.json",
        {
            "v": 1,
            "cases": [_case(case, place) for place, case in enumerate(order)],
            "trials": trials,
            "winner": None,
            "best": best.name,
            "baseline": matrix.baseline,
            "is_decided": False,
            "sentence": f"{best.name} leads",
            "costs": {"device_s": 12.5},
            "objective": {"name": load_plan(plan_file).config.objective},
        },
    )
    return 0


def _case(case: Case, place: int) -> dict[str, Any]:
    speed = 130.0 - 10 * place
    verdict = "undecided" if place == 0 else "slower"
    ratio, reach = speed / 130.0, 0.01 if place else 0.0
    fitted = {"ratio": ratio, "ratio_low": ratio - reach, "ratio_high": ratio + reach, "samples_per_s": speed}
    return {"name": case.name, "values": case.values, "rank": place + 1, "verdict": verdict} | fitted


def main(arguments: list[str]) -> int:
    command, *words = arguments
    with open(os.environ["CALLS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(arguments) + "\n")
    if os.environ.get("FAIL") == command and command != "train":
        print(f"UsageError: {command} fails", file=sys.stderr)
        return 4
    if command == "wait":
        hold("wait", 0)
    out = Path(words[words.index("--out") + 1]) if "--out" in words else None
    given = [word for word in words if "=" in word]
    if command == "train":
        assert out is not None
        return train(words[0], given, out)
    if command == "sweep":
        assert out is not None
        return sweep(words[0], out)
    if command == "preflight":
        found = {"name": "open files", "status": "warn", "found": "256", "remedy": "ulimit -n 65536"}
        is_fit = os.environ.get("FAIL") != "unfit"
        disk = (
            {"name": "disk", "status": "ok", "found": "fine"}
            if is_fit
            else {"name": "disk", "status": "fail", "found": "full"}
        )
        print(json.dumps({"status": "warn", "checks": [found, disk]}))
        return 0 if is_fit else 3
    if command == "evaluate":
        row = {"split": "test", "metric": "ndcg_10", "value": 0.3, "logged": 0.3, "equal": True}
        print(json.dumps({"rows": [row]}))
    if command == "export":
        check = {"equal": True, "max_difference": 0.0, "eager_ms": 4.0, "compiled_ms": 2.0, "compile_s": 9.0}
        check |= {"speed_up": 1.0, "tolerance": "1e-4", "compared": "9 samples", "measured": "5 blocks"}
        print(json.dumps({"step": 4, "num_parameters": 7, "bytes": 28, "compile_check": check}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
