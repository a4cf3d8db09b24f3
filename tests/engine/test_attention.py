"""The policy: by compute capability, by request, by what torch serves; and that what was decided is what runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from paceline.config.sections import Attention as Section
from paceline.engine.attention import choose_attention, choose_impl, combine, find_calls
from paceline.engine.backends import BACKENDS, restricted
from paceline.engine.build import build_trainer
from paceline.engine.failure import explain_exception
from paceline.engine.kernels import find_attention
from paceline.engine.ranks import Ranks
from paceline.errors import ConfigError
from paceline.files import read_records
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.workload import SasrecWorkload
from paceline.workload import AttentionCall
from tests.engine.conftest import Regression

TRAINING = AttentionCall("training", rows=8, heads=2, queries=9, keys=9, width=8, is_causal=True)
EVALUATION = dataclasses.replace(TRAINING, phase="evaluation")
DROPPING = dataclasses.replace(TRAINING, dropout=0.1)
TURING = {
    "flash": "Flash attention only supports gpu architectures in the range [sm80, sm121]",
    "cudnn": "cuDNN MHA only …",
}
"""What torch refuses on a GPU of 7.5."""


@pytest.fixture(autouse=True)
def _as_before():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with restricted(tuple(BACKENDS)):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("capability", "section", "refused", "impl"),
    [
        (None, {}, {}, "sdpa"),
        ((7, 5), {}, TURING, "eager"),
        ((8, 0), {}, {}, "sdpa"),
        ((9, 0), {}, {}, "sdpa"),
        ((7, 5), {"exclude": ["eager"]}, TURING, "sdpa"),
        ((7, 5), {"exclude": ["eager", "math", "efficient"]}, TURING, "flex"),
        ((9, 0), {"exclude": ["flash", "cudnn", "efficient", "math"]}, {}, "eager"),
        ((9, 0), {"impl": "flash"}, {}, "flash"),
        ((9, 0), {"impl": "cudnn", "exclude": ["flash"]}, {}, "cudnn"),
        ((9, 0), {"impl": "cudnn"}, {"cudnn": "cuDNN SDPA is not deterministic"}, "sdpa"),
        ((7, 5), {"impl": "flash"}, TURING, "eager"),
        ((7, 5), {"impl": "sdpa"}, TURING, "sdpa"),
        ((9, 0), {"impl": "eager"}, {}, "eager"),
        ((9, 0), {"impl": "flex"}, {}, "flex"),
    ],
)
def test_by_capability_request_and_what_torch_refuses(capability, section, refused, impl):
    chosen = Section(**section)
    verdict = choose_impl(chosen, capability, combine([TRAINING], [refused], dict.fromkeys(chosen.exclude, "excluded")))
    assert verdict.impl == impl
    assert verdict.is_fallback == (chosen.impl not in ("auto", impl))
    if chosen.impl == "auto" and not chosen.exclude and capability:
        assert f"{capability[0]}.{capability[1]}" in verdict.reason
    if verdict.is_fallback:
        assert refused[chosen.impl] in verdict.reason


def test_a_request_that_must_not_fall_back_ends_with_the_reason():
    section = Section(impl="flash", fallback="error")
    with pytest.raises(ConfigError, match="sm80, sm121") as caught:
        choose_impl(section, (7, 5), combine([TRAINING], [TURING], {}))
    assert "attention.fallback=warn" in caught.value.problems[0].do
    assert choose_impl(section, (8, 0), {}).impl == "flash"


def test_nothing_left_is_an_error_with_every_reason():
    excluded = dict.fromkeys(("eager", "flash", "math"), "excluded")
    with pytest.raises(ConfigError, match=r"no attention is left.*sdpa.*eager.*flex attention cannot drop"):
        choose_impl(Section(), None, combine([DROPPING], [{"cudnn": "x", "efficient": "y"}], excluded))


def test_one_phase_that_cannot_is_enough():
    refusals = combine([DROPPING, EVALUATION], [{"flash": "no dropout"}, {}], {})
    assert refusals.keys() == {"flash", "flex"}
    assert "training" in refusals["flash"]
    only_eager = dataclasses.replace(TRAINING, kernels=("eager",), why="it sums per bin")
    assert combine([only_eager], [{}], {}) == dict.fromkeys(("sdpa", "flash", "cudnn", "flex"), "it sums per bin")


def decide(context, calls=(TRAINING, EVALUATION), **options):
    attention = choose_attention(context.config.attention, calls, "fp32", context.ranks, context.events, **options)
    return attention, read_records(context.layout.events)


def test_a_request_that_a_cpu_serves(make_context):
    attention, (impl, backend) = decide(make_context({"attention": {"impl": "flash"}}))
    assert (attention.kernel, attention.backends) == ("sdpa", ("flash",))
    assert (impl["requested"], impl["effective"]) == ("flash", "flash")
    assert (backend["about"], backend["effective"]) == ("attention.backend", "flash")
    assert "float32" in backend["reason"]
    assert TRAINING.shape in backend["reason"]


def test_a_fallback_is_told_once_with_torchs_reason(make_context):
    attention, (warning, impl, backend) = decide(make_context({"attention": {"impl": "flash"}}), (DROPPING, EVALUATION))
    assert (attention.impl, attention.backends) == ("sdpa", tuple(BACKENDS))
    assert warning["kind"] == "warning"
    assert "do not support non-zero dropout" in warning["why"]
    assert (impl["requested"], impl["effective"], impl["reason"]) == ("flash", "sdpa", warning["why"])
    assert backend["effective"] == "training math, evaluation flash"


def test_flex_has_no_backward_on_a_cpu(make_context):
    _, (warning, impl, _) = decide(make_context({"attention": {"impl": "flex"}}))
    assert "backward on CPU" in warning["why"]
    assert impl["effective"] == "sdpa"
    with pytest.raises(ConfigError, match="backward on CPU"):
        decide(make_context({"attention": {"impl": "flex", "fallback": "error"}}))


def test_exclusions_choose_and_those_without_effect_are_said(make_context):
    attention, (impl, note, backend) = decide(make_context({"attention": {"exclude": ["flash", "cudnn"]}}))
    assert attention.backends == ("efficient", "math")
    assert backend["effective"] == "math"
    assert impl["effective"] == "sdpa"
    assert "'cudnn' has no effect here" in note["what"]
    attention, records = decide(make_context({"attention": {"exclude": ["math"]}}), (DROPPING, EVALUATION))
    assert attention.impl == "eager"
    assert "math: attention.exclude names it" in records[-2]["reason"]


def test_what_another_ranks_gpu_refuses_is_refused_for_all(make_context, monkeypatch):
    context = make_context({"attention": {"impl": "flash"}})
    gather = Ranks.gather_floats

    def with_another(self, mine):
        others = [0.0, *mine[1:]] if len(mine) > 2 else mine
        return torch.cat([gather(self, mine), torch.tensor([others], dtype=torch.float64)])

    monkeypatch.setattr(Ranks, "gather_floats", with_another)
    attention, (warning, *_) = decide(context, (TRAINING,))
    assert (attention.impl, attention.backends) == ("sdpa", ("cudnn", "efficient", "math")), "no rank uses it"
    assert "not every rank" in warning["why"]


def test_a_recipe_that_tells_of_no_attention(make_context):
    context = make_context({"attention": {"impl": "cudnn"}})
    assert find_calls(Regression(), context.config, context.ranks.device, 1) == []
    attention, (warning, impl) = decide(context, ())
    assert (attention.impl, impl["effective"]) == ("sdpa", "sdpa")
    assert "a CPU has none" in warning["why"]


OWN = [
    dataclasses.replace(TRAINING, phase=phase, name=name, own=own, why="model.sparse_path decides")
    for phase in ("training", "evaluation")
    for name, own in (("compressed", "nsa_range"), ("selected", "nsa_chosen"))
]


def test_nothing_is_asked_about_what_a_recipe_computes_itself(make_context, monkeypatch):
    monkeypatch.setattr("paceline.engine.attention.find_refusals", lambda *call: pytest.fail("torch was asked"))
    attention, (impl, backend) = decide(make_context(), OWN)
    assert (attention.impl, attention.kernel, attention.backends) == ("own", "own", tuple(BACKENDS))
    assert (impl["requested"], impl["effective"], impl["reason"]) == ("auto", "own", "model.sparse_path decides")
    assert backend["effective"] == "compressed nsa_range, selected nsa_chosen"
    assert str(OWN[0]).startswith("training: compressed: 8 rows")


def test_a_request_for_another_kernel_than_the_recipes_own_is_said_or_refused(make_context):
    asked = {"impl": "flash"}
    _, (warning, impl, _) = decide(make_context({"attention": asked}), OWN)
    assert warning["what"] == "attention.impl=flash cannot be served here: own instead"
    assert (impl["requested"], impl["effective"]) == ("flash", "own")
    _, told = decide(make_context({"attention": asked}), OWN, is_told=True)
    assert [record["kind"] for record in told[-2:]] == ["choice", "choice"]
    with pytest.raises(ConfigError, match=r"impl=flash cannot be served here: model\.sparse_path decides") as caught:
        decide(make_context({"attention": asked | {"fallback": "error"}}), OWN)
    assert "attention.fallback=error" in caught.value.problems[0].where


def test_an_excluded_backend_counts_for_what_is_written_in_torch_only(make_context):
    excluding = {"attention": {"exclude": ["flash"]}}
    _, (_, note, _) = decide(make_context(excluding), OWN)
    assert "'flash' has no effect here" in note["what"]
    by_torch = [dataclasses.replace(call, own="torch") for call in OWN]
    context = make_context(excluding)
    before = len(read_records(context.layout.events))
    attention, records = decide(context, by_torch)
    assert attention.backends == ("cudnn", "efficient", "math")
    assert [record["kind"] for record in records[before:]] == ["choice", "choice"]


def test_where_some_calls_are_the_recipes_own_torch_is_asked_about_the_others(make_context):
    calls = [dataclasses.replace(call, dropout=0.5) for call in OWN]
    attention, (impl, backend) = decide(make_context({"attention": {"impl": "flash"}}), [TRAINING, EVALUATION, *calls])
    assert (attention.impl, impl["effective"]) == ("flash", "flash")
    assert backend["effective"] == "flash, compressed nsa_range, selected nsa_chosen"
    assert "compressed" not in backend["reason"]


DATA = {"users": 50, "items": 30, "events_per_user": 8, "max_length": 8}


@pytest.mark.parametrize(
    ("attention", "model", "training", "evaluation"),
    [
        ({}, {}, "flash", "flash"),
        ({"impl": "flash"}, {"mhc": True, "streams": 2}, "flash", "flash"),
        ({"impl": "eager"}, {}, "eager", "eager"),
        ({"exclude": ["flash"]}, {}, "math", "math"),
        ({"impl": "flash"}, {"attention_dropout": 0.1}, "math", "flash"),
        ({"impl": "flash"}, {"time": True}, "eager", "eager"),
    ],
)
def test_what_was_recorded_is_what_a_profile_of_the_run_shows(make_context, attention, model, training, evaluation):
    sections = {
        "data": DATA,
        "model": {"width": 8, "blocks": 1, **model},
        "attention": attention,
        "train": {"max_steps": 2, "global_batch": 16},
        "evaluate": {"every_epochs": None},
        "checkpoint": {"enabled": False},
        "telemetry": {"tensorboard": False},
    }
    config = SasrecConfig.model_validate({"recipe": "sasrec", **sections})
    context = dataclasses.replace(make_context(), config=config)
    trainer = build_trainer(context, SasrecWorkload(config))
    promised = {
        event["about"]: event["effective"]
        for event in read_records(context.layout.events)
        if event.get("kind") == "choice"
    }["attention.backend"]
    same = training == evaluation
    assert promised == (training if same else f"training {training}, evaluation {evaluation}")

    def backends(run):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            run()
        return {each.backend for each in find_attention((row.key, row.count, 0.0) for row in profiler.key_averages())}

    batch = trainer._workload.train_set().fetch(range(16), dataclasses.replace(trainer._evaluator._draw))
    assert backends(lambda: trainer._step.losses.compute(batch)[0].backward()) == {training}
    assert backends(lambda: trainer._evaluator.run("validation")) == {evaluation}
    trainer.run()
    trainer.close()


def test_a_shape_that_nobody_told_of_ends_with_what_to_do(tmp_path):
    states = torch.ones(1, 1, 2, 8)
    with restricted(("efficient",)), pytest.raises(RuntimeError) as caught:
        torch.nn.functional.scaled_dot_product_attention(states, states, states)
    error, is_echo = explain_exception(caught.value, tmp_path, 3)
    assert not is_echo
    assert "no backend left" in error.problems[0].what
    assert "rank 3" in error.problems[0].where
    assert "attention.exclude" in error.problems[0].do
