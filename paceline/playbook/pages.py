"""playbook.md: one page about a playbook, each phase with its command, its verdict, its evidence; replaced after every change."""

from __future__ import annotations

from pathlib import Path

from paceline.files import write_text
from paceline.playbook.gate import Judged
from paceline.playbook.state import TEXT, PhaseRecord, PlayRecord


def write_pages(record: PlayRecord, root: Path) -> None:
    write_text(root / TEXT, render_text(record))


def render_text(record: PlayRecord) -> str:
    lines = [f"# {record.name}: {record.state}", ""]
    lines += [record.about, ""] if record.about else []
    if record.reason:
        lines += [f"Ended in {record.reason}.", ""]
    lines += ["| phase | kind | verdict | took | |", "|---|---|---|---:|---|"]
    for phase in record.phases:
        lines.append(f"| {phase.name} | {phase.kind} | {phase.state} | {_took(phase)} | {_cell(phase.reason)} |")
    for phase in record.phases:
        lines += ["", *_phase(phase)]
    machine = record.machine
    where = ", ".join(
        str(part)
        for part in (
            machine.get("host"),
            machine.get("cpu", {}).get("model"),
            *(gpu.get("name") for gpu in machine.get("gpus", ())),
        )
        if part
    )
    return "\n".join([*lines, "", f"Paceline {record.paceline}, {where}"]) + "\n"


def _phase(phase: PhaseRecord) -> list[str]:
    lines = [f"## {phase.name} ({phase.kind}): {phase.state}", ""]
    lines += [phase.about, ""] if phase.about else []
    if phase.reason:
        lines += [f"Why: {phase.reason}", ""]
    if phase.command:
        lines += ["```sh", phase.command, "```", ""]
    for used in phase.uses:
        instead = f", in place of which {used['by_hand']} was typed" if "by_hand" in used else ""
        lines.append(f"- uses {used['from']}: `{used['key']}` = `{used['value']}` ({used['file']}){instead}")
    lines += [f"- gate: {Judged(**each)}" for each in phase.gate]
    lines += [f"- {word}: [{path}]({path})" for word, path in phase.links.items()]
    if phase.evidence:
        lines += ["", "| what | value | from |", "|---|---:|---|"]
        lines += [f"| {_cell(row['what'])} | {_cell(row['value'])} | {_cell(row['from'])} |" for row in phase.evidence]
    if phase.tail:
        lines += ["", "Its last words:", "```text", *(line.replace("```", "'''") for line in phase.tail), "```"]
    return lines


def _took(phase: PhaseRecord) -> str:
    return f"{phase.seconds:,.1f} s" if phase.attempts else ""


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
