"""What `paceline evaluate`, `export`, `recommend` and `sample` need torch for: one process that loads a trained model and answers in one line of JSON.

python -m paceline.worker.model evaluate runs/demo --checkpoint best --device cpu --precision fp32
python -m paceline.worker.model export runs/demo --checkpoint best --to runs/demo/.export
python -m paceline.worker.model recommend runs/demo --checkpoint best --top 10 --user=17
python -m paceline.worker.model sample runs/lm --checkpoint best --tokens 100 --prompt="Once upon"
python -m paceline.worker.model compiled exported
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import paceline
from paceline.engine.checkpoint.shard import encode_header, plan_shards, write_file
from paceline.engine.checkpoint.tensors import model_tensors
from paceline.engine.evaluation import Evaluator
from paceline.engine.failure import explain_exception
from paceline.engine.precision import build_precision
from paceline.engine.ranks import Ranks
from paceline.engine.seeding import make_deterministic
from paceline.engine.strategies.base import Strategy
from paceline.errors import UsageError
from paceline.files import finite, sha256_of, write_text
from paceline.parentage import die_with_agent
from paceline.serving.tenrec.answering import Wishes
from paceline.serving.tenrec.answering import recommend as serve
from paceline.serving.tenrec.service import can_serve
from paceline.telemetry.events import QuietLog
from paceline.telemetry.exports import CONFIG, WEIGHTS, Export, read_export, write_export
from paceline.telemetry.failure import format_failure
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from paceline.trained import Trained, load_model
from paceline.workload import Recommends, Samples


def main(argv: list[str]) -> int:
    arguments = _parse(argv)
    die_with_agent()
    try:
        print(json.dumps(_answer(arguments)))
        return 0
    except BaseException as error:
        typed, _ = explain_exception(error, arguments.run, 0)
        text = "".join(traceback.format_exception(error))
        print(format_failure(typed.to_record() | {"traceback": text}), file=sys.stderr)
        return typed.exit_code


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paceline.worker.model", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    evaluate = verbs.add_parser("evaluate", help="evaluate every split, in one process")
    evaluate.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one"
    )
    evaluate.add_argument("--precision", choices=("fp32", "bf16", "fp16"), help="default: as configured")
    export = verbs.add_parser("export", help="write the files of an export into a directory")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="an empty directory")
    recommend = verbs.add_parser("recommend", help="what the model would show next")
    subject = recommend.add_mutually_exclusive_group(required=True)
    subject.add_argument("--user", help="a user, by the data's name for it")
    subject.add_argument("--history", type=json.loads, help="a JSON list of items, oldest first, by the data's names")
    recommend.add_argument("--top", type=int, default=10, help="how many items")
    recommend.add_argument("--keep-seen", action="store_true", help="also items of the history")
    recommend.add_argument("--pipeline", type=json.loads, help="what is said to the pipeline, as a JSON object")
    sample = verbs.add_parser("sample", help="what the model writes after a prompt")
    sample.add_argument("--prompt", required=True, help="text to go on from")
    sample.add_argument("--tokens", type=int, default=100, help="how many at most")
    sample.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
    sample.add_argument("--top", type=int, help="draw among so many of the likeliest tokens only")
    sample.add_argument("--seed", type=int, default=0, help="of what is drawn")
    sample.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    compiled = verbs.add_parser("compiled", help="compile it, compare outputs with the model as written, and measure")
    for each in (evaluate, export, recommend, sample, compiled):
        each.add_argument("run", type=Path, help="a run directory, or an export to be compiled")
        each.add_argument("--checkpoint", default="best", help="best, latest, final, a name, or a path")
    return parser.parse_args(argv)


def _answer(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.verb == "export":
        trained = load_model(arguments.run, arguments.checkpoint)
        return write_files(trained, arguments.to) | _describe(trained)
    if arguments.verb == "recommend":
        # On the CPU: one user is not worth waking a GPU, which may be training.
        trained = load_model(arguments.run, arguments.checkpoint)
        found = recommend(
            trained, arguments.user, arguments.history, arguments.top, arguments.keep_seen, arguments.pipeline
        )
        described = _describe(trained)
        return found | described | {"note": "; ".join(filter(None, (described["note"], found["note"])))}
    if arguments.verb == "sample":
        first = "cuda" if torch.cuda.is_available() else "cpu"
        trained = load_model(
            arguments.run, arguments.checkpoint, first if arguments.device == "auto" else arguments.device
        )
        found = sample(trained, arguments)
        described = _describe(trained)
        return found | described | {"note": "; ".join(filter(None, (described["note"], found["note"])))}
    if arguments.verb == "compiled":
        from paceline.worker.inference import check_compiled

        place = "cuda" if torch.cuda.is_available() else "cpu"
        return check_compiled(load_model(arguments.run, arguments.checkpoint, place))
    is_cuda = arguments.device != "cpu" and torch.cuda.is_available()
    trained = load_model(arguments.run, arguments.checkpoint, "cuda" if is_cuda else "cpu")
    return evaluate_splits(trained, arguments.precision) | _describe(trained)


def _describe(trained: Trained) -> dict[str, Any]:
    # Of an export the record says what the manifest of a checkpoint does.
    run = read_export(trained.root).run if trained.checkpoint is None else trained.checkpoint.manifest.run
    average = "its weights are the moving average (train.optimizer.ema)" if trained.is_average else ""
    note = "; ".join(filter(None, (trained.note, average)))
    return {"checkpoint": trained.where, "step": trained.step, "run_id": run, "note": note}


def evaluate_splits(trained: Trained, precision_mode: str | None = None) -> dict[str, Any]:
    """The metrics of every split, as a run of one rank computes them: {"device": …, "precision": …, "splits": [{"split": …}, …]}."""
    config, workload = trained.job.config, trained.workload
    if config.run.deterministic:
        make_deterministic()
    trained.attention.install()
    device = next(trained.model.parameters()).device
    ranks = Ranks(0, 1, device, "none", "one process")
    section = config.precision.model_copy(update={"mode": precision_mode} if precision_mode else {})
    precision = build_precision(section, ranks, QuietLog())
    evaluator = Evaluator(config, ranks, workload, Strategy(trained.model), precision)
    sizes = {split: evaluator.size(split) for split in workload.splits}
    splits = [
        {"split": split, "num_samples": size, "metrics": evaluator.run(split)} for split, size in sizes.items() if size
    ]
    return {"device": device.type, "precision": precision.name, "splits": splits}


def recommend(
    trained: Trained,
    user: str | None,
    history: list[str] | None,
    top: int,
    keep_seen: bool,
    pipeline: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of a `Recommendation`, and `stages` where a pipeline served it; UsageError where the recipe has none to give."""
    trained.attention.install()
    if can_serve(trained):
        wishes = Wishes(top, user, history, keep_seen, **(pipeline or {}))
        served, stages = serve(trained, wishes)
        return finite(asdict(served) | stages)  # type: ignore[no-any-return]
    workload, name = trained.workload, trained.job.recipe.name
    if not isinstance(workload, Recommends):
        what = f"the recipe {name} recommends nothing"
        raise UsageError(what, trained.where, "use its model in another way: paceline export, paceline.trained")
    if pipeline:
        said = ", ".join(f"--{key.replace('_', '-')}" for key in pipeline)
        raise UsageError(
            f"the recipe {name} is served without a pipeline: it has no {said}", trained.where, "leave it out"
        )
    with torch.no_grad():
        found = workload.recommend(trained.model, user=user, history=history, top=top, keep_seen=keep_seen)
    answer: dict[str, Any] = finite(asdict(found))
    return answer


def sample(trained: Trained, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `Sampled`; UsageError where the recipe's model writes nothing."""
    workload = trained.workload
    if not isinstance(workload, Samples):
        what = f"the recipe {trained.job.recipe.name} writes no text"
        raise UsageError(what, trained.where, "use its model in another way: paceline export, paceline.trained")
    trained.attention.install()
    with torch.no_grad():
        found = workload.sample(
            trained.model,
            arguments.prompt,
            tokens=arguments.tokens,
            temperature=arguments.temperature,
            top=arguments.top,
            seed=arguments.seed,
        )
    return asdict(found)


def write_files(trained: Trained, directory: Path) -> dict[str, Any]:
    """Writes the files of an export; the run is only read."""
    assert trained.checkpoint is not None, "the commands give run directories only"
    manifest = trained.checkpoint.manifest
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model_tensors(trained.model).items()}
    (names,) = plan_shards(tensors, 1)
    pieces = (tensors[name].reshape(-1).view(torch.uint8).numpy().data for name in names)
    entry = write_file(directory / WEIGHTS, (encode_header(names, tensors), *pieces))
    write_text(directory / CONFIG, RunLayout(trained.root).config.read_text(encoding="utf-8"))
    export = Export(
        recipe=trained.job.recipe.name,
        step=trained.step,
        run=manifest.run,
        checkpoint=trained.checkpoint.path.name,
        paceline=paceline.__version__,
        torch=torch.__version__,
        sha256=sha256_of(directory / WEIGHTS),
        num_parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
        identity=manifest.identity,
        is_average=trained.is_average,
        metrics=_logged_rows(trained.root, manifest.run, trained.step),
    )
    write_export(directory, export)
    return {"bytes": entry.bytes, "num_parameters": export.num_parameters}


def _logged_rows(root: Path, run_id: str, step: int) -> list[dict[str, Any]]:
    """What the run logged at that step; nothing where the checkpoint is another run's. JSON has no number that is not finite."""
    run = read_run(root)
    rows = [row for row in run.validation if row["step"] == step] if run.run.id == run_id else []
    return [finite(row) for row in rows]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's own end takes a second or more
