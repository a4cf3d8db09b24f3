"""Native sparse attention by kernels: outputs and all gradients against the reference in float64, with the selected blocks given; what is
selected, what must not be seen, the same bits again. Trainings are in test_nsa_training.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from paceline.engine.kernels import find_attention
from paceline.engine.promise import check_promise
from paceline.recipes.nsa import head, reference, torch_path
from paceline.recipes.nsa.attention import Shape, SparseAttention, reference_sizes
from paceline.recipes.nsa.decoder import Decoder
from paceline.recipes.nsa.kernels import fast_path
from paceline.recipes.nsa.kernels.launching import sum_products
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.pattern import Frame, Pattern, one_document
from paceline.recipes.nsa.selection import choose_blocks, score_blocks
from paceline.recipes.nsa.stages import Stages
from tests.recipes.nsa.attentions import build, frame_of, make_hidden, make_positions, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

MOST_BLOCKS = "paceline.recipes.nsa.kernels.past_attention.MOST_BLOCKS"
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
BIAS, HALF_BIAS_LIMIT = "gates.project.bias", 1e-2
"""three sums that nearly vanish: in fp16 plain torch, too, has up to 6e-3"""
SMALL = Pattern(block=16, stride=8, selection_block=16, selected=4, window=24)
PAPER = Pattern()
CASES = {
    "one token": (2, 1, 64, PAPER, [(1,)]),
    "shorter than a block": (4, 2, 64, PAPER, [(31,)]),
    "group 1, packed": (2, 2, 64, SMALL, [(150, 1, 105), (3, 250, 3)]),
    "group 2": (4, 2, 128, SMALL, [(201,)]),
    "group 6, packed": (12, 2, 64, replace(PAPER, selected=4, window=100), [(333, 180)]),
    "group 16": (16, 1, 64, SMALL, [(256,)]),
    "group 3, wide blocks": (3, 1, 128, replace(PAPER, selection_block=128, selected=4), [(600, 100)]),
    "4,096 tokens, packed": (6, 1, 64, PAPER, [(2501, 1, 1594)]),
}
"""heads, groups, width, sizes, rows of documents"""


@pytest.fixture(autouse=True)
def whole_numbers(backward_thread: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(params=[0, 32], ids=["by blocks", "by words"])
def most_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Selected attention by the blocks' queries, as in long rows, however short they are; and as rows are read where nothing is patched."""
    monkeypatch.setattr(MOST_BLOCKS, request.param)
    return request.param


def build_fast(heads: int, groups: int, width: int, pattern: Pattern) -> SparseAttention:
    return build(heads, groups, width, pattern, stages=fast_path.FAST).cuda()


def by_reference(attention: SparseAttention, hidden: Tensor, positions: Tensor, upstream: Tensor):
    """Output, blocks and gradients in float64."""
    hidden = hidden.clone().requires_grad_()
    starts = (torch.arange(positions.shape[1]) - positions.cpu()).tolist()
    weights = dict(attention.named_parameters())
    rows = [reference.attend(row, weights, starts[b], reference_sizes(attention.shape)) for b, row in enumerate(hidden)]
    mixed, blocks = (torch.stack(parts) for parts in zip(*rows, strict=True))
    gradients = torch.autograd.grad(mixed, [hidden, *weights.values()], upstream, allow_unused=True)
    return mixed.detach(), blocks, dict(zip(["hidden", *weights], gradients, strict=True))


def hold_to(
    expected: Tensor, blocks: Tensor, gradients: dict[str, Tensor | None], attention: SparseAttention, hidden: Tensor,
    positions: Tensor, upstream: Tensor,
) -> None:  # fmt: skip
    """The output and every gradient by kernels, the blocks given, in all types."""
    attention = attention.float()
    for dtype, limit in LIMITS.items():
        attention.zero_grad()
        given = hidden.float().requires_grad_()
        with nullcontext() if dtype == torch.float32 else torch.autocast("cuda", dtype):
            found = attention(given, frame_of(positions, attention, torch.float32), blocks_BTGn=blocks)
        found.backward(upstream.to(found.dtype))
        errors = {"output": relative_error(found, expected)}
        whole = gradients["project_out.weight"].norm().item()
        for weight, parameter in [("hidden", given), *attention.named_parameters()]:
            exact = gradients[weight]
            if exact is None or exact.norm().item() < 1e-9 * whole:
                # What a row so short cannot reach gets nothing, or what rounding leaves of nothing.
                left = 0.0 if parameter.grad is None else parameter.grad.double().norm().item()
                assert left <= limit * whole, weight
            else:
                errors[weight] = relative_error(parameter.grad, exact)
        worst = max(errors, key=lambda weight: errors[weight])
        print(f"{list(positions.shape)} {dtype}: {worst} {errors[worst]:.1e}")
        # One by one: what is not a number is never the largest.
        limits = {BIAS: HALF_BIAS_LIMIT} if dtype == torch.float16 else {}
        assert all(error <= limits.get(name, limit) for name, error in errors.items()), (dtype, errors)


@pytest.mark.usefixtures("most_blocks")
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_all_gradients(name: str) -> None:
    heads, groups, width, pattern, rows = CASES[name]
    positions = make_positions(*rows).cuda()
    attention = build_fast(heads, groups, width, pattern)
    hidden, upstream = make_hidden(positions).cuda(), make_hidden(positions, seed=2).cuda()
    hold_to(*by_reference(attention, hidden, positions, upstream), attention, hidden, positions, upstream)


@pytest.mark.parametrize(("heads", "groups", "width"), [(1, 1, 128), (3, 1, 64), (4, 2, 64), (12, 2, 128), (16, 1, 64)])
def test_random_shapes(heads: int, groups: int, width: int) -> None:
    """Against plain torch in float64, which tests on a CPU hold to the reference within 1e-12."""
    random = np.random.default_rng([heads, groups, width])
    # Rows of up to 32 blocks of 64 tokens, and longer ones: selected attention has a way for each.
    for least, most in [(1, 2048), (2049, 4096)] * 2:
        length = int(random.integers(least, most + 1))
        rows = [draw_documents(random, length) for _ in range(2)]
        print([len(row) for row in rows], length)
        positions = make_positions(*rows).cuda()
        chosen: list[Tensor] = []

        def select(*given, chosen=chosen):
            chosen.append(torch_path.select(*given))
            return chosen[-1]

        exact = build(heads, groups, width, PAPER, stages=replace(torch_path.TORCH, select=select)).cuda()
        hidden, upstream = make_hidden(positions).cuda(), make_hidden(positions, seed=2).cuda()
        given = hidden.clone().requires_grad_()
        expected = exact(given, frame_of(positions, exact))
        weights = dict(exact.named_parameters())
        found = torch.autograd.grad(expected, [given, *weights.values()], upstream, allow_unused=True)
        gradients = dict(zip(["hidden", *weights], found, strict=True))
        fast = build_fast(heads, groups, width, PAPER)
        hold_to(expected.detach(), chosen[0], gradients, fast, hidden, positions, upstream)


@pytest.mark.parametrize(("heads", "groups", "width"), [(1, 1, 64), (6, 2, 128), (12, 2, 64), (16, 1, 128)])
@pytest.mark.parametrize("block", [16, 64, 128])
def test_short_rows_are_read_alike_by_words_and_by_blocks(
    heads: int, groups: int, width: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against plain torch in float64: 32 blocks of a row, all of one document; documents that begin anywhere; a block cut short; in all types."""
    pattern = replace(PAPER, selection_block=block, selected=5, block=16, stride=8)
    length = 32 * block
    positions = make_positions(
        (length,), (block, 1, length - 2 * block, block - 1), (length // 3, length - length // 3)
    )
    positions = positions.cuda()
    frame = build_fast(heads, groups, width, pattern).build_frame(positions, torch.float32)
    random = torch.Generator("cuda").manual_seed(7)
    scores = torch.rand(3, groups, length, 32, device="cuda", generator=random)
    blocks = choose_blocks(scores, positions, pattern)
    shapes = [(3, length, count, width) for count in (heads, groups, groups, heads)]
    *given, upstream = (torch.randn(shape, device="cuda", generator=random) for shape in shapes)
    for dtype, limit in LIMITS.items():
        states = [each.to(dtype).requires_grad_() for each in given]
        exact = [each.detach().double().requires_grad_() for each in states]
        expected = torch_path.attend_selected(*exact, blocks, frame, pattern)
        wanted = torch.autograd.grad(expected, exact, upstream.to(dtype).double())
        for most in (0, 32):
            monkeypatch.setattr(MOST_BLOCKS, most)
            found = fast_path.attend_selected(*states, blocks, frame, pattern)
            gradients = torch.autograd.grad(found, states, upstream.to(dtype))
            errors = [relative_error(*pair) for pair in zip((found, *gradients), (expected, *wanted), strict=True)]
            print(dtype, most, [f"{error:.1e}" for error in errors])
            assert all(error <= limit for error in errors), (dtype, most, errors)


def draw_documents(random: np.random.Generator, length: int) -> tuple[int, ...]:
    """Lengths that sum up to it: some documents, long and short ones."""
    cuts = np.unique(random.integers(1, length, size=random.integers(0, 6))) if length > 1 else np.array([], np.int64)
    return tuple(int(each) for each in np.diff([0, *cuts, length]))


def test_a_prompt_by_kernels_and_then_token_by_token() -> None:
    """The same logits as the whole at once; a near-tie may have chosen another block for a token in a hundred."""
    torch.manual_seed(0)
    model = LanguageModel(50, 2, Shape(64, 4, 2, 64, SMALL), 64, stages=fast_path.FAST, is_packed=False).cuda().eval()
    tokens = torch.randint(50, (2, 400), device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    with torch.no_grad():
        hidden = model.encode(tokens, one_document(2, 400, tokens.device))
        expected = hidden @ model.token_embedding.weight.T
        decoder = Decoder(model)
        errors = [relative_error(decoder.prefill(tokens[:, :150]), expected[:, 149])]
        errors += [relative_error(decoder.step(tokens[:, t]), expected[:, t]) for t in range(150, 400)]
    assert sum(error > 1e-5 for error in errors) <= 2, max(errors)


def keys_and_queries(positions: Tensor, heads: int, groups: int, pattern: Pattern) -> tuple[Tensor, Tensor]:
    slots = pattern.num_slots(positions.shape[1])
    torch.manual_seed(5)
    query = torch.randn(*positions.shape, heads, 64, device="cuda")
    return query, torch.randn(len(positions), slots, groups, 64, device="cuda")


def exact_scores(query: Tensor, keys: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    """(B, G, T, J) in float64: all probabilities at once."""
    grouped = query.double().unflatten(2, (keys.shape[2], -1))
    scores = torch.einsum("btgrd,bngd->bgrtn", grouped, keys.double()) / query.shape[-1] ** 0.5
    slots = torch.arange(keys.shape[1], device=keys.device)
    sees = (slots >= frame.first_BT[..., None]) & (slots < frame.seen_BT[..., None])
    weights = scores.masked_fill(~sees[:, None, None], -torch.inf).softmax(-1).nan_to_num(0.0).sum(2)
    return score_blocks(weights, frame.first_BT, pattern.num_selection(query.shape[1]), pattern)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("pattern", [PAPER, SMALL, replace(PAPER, selected=40)])
def test_what_is_selected(pattern: Pattern, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest of all scores in float64, wherever the margin exceeds rounding; in several chunks the same; equal scores by the lower
    number; forced blocks, the past alone, none twice."""
    positions = make_positions((1500, 1, 547), (2000, 48)).cuda()
    attention = build_fast(12, 2, 64, pattern)
    frame = frame_of(positions, attention, torch.float32)
    query, keys = (states.to(dtype) for states in keys_and_queries(positions, 12, 2, pattern))
    logsum = fast_path.attend_compressed(query, keys, keys, frame)[1]
    found = fast_path.select(query, keys, logsum, frame, pattern)
    scores = exact_scores(query, keys, frame, pattern)
    expected = choose_blocks(scores, positions, pattern)
    number, own = torch.arange(scores.shape[-1], device="cuda"), positions[..., None] // pattern.selection_block
    is_open = (number >= pattern.initial) & (number <= own - pattern.local)
    ranked = scores.masked_fill(~is_open[:, None], -torch.inf).sort(dim=-1, descending=True).values
    room = pattern.selected - pattern.initial - pattern.local
    if ranked.shape[-1] > room:
        margin = (ranked[..., room - 1] - ranked[..., room]).nan_to_num(torch.inf, torch.inf).transpose(1, 2)
        is_clear = margin > 1e-5
        assert is_clear.float().mean() > 0.9
        assert torch.equal(found[is_clear], expected[is_clear])
    else:
        assert torch.equal(found, expected)
    for forced in (torch.zeros_like(own), own, (own - 1).clamp(min=0)):
        assert (found == forced[..., None]).any(-1).all()
    filled = found[..., 1:] >= 0
    assert (found[..., 1:] > found[..., :-1])[filled].all(), "rising, so none twice"
    assert (found <= own[..., None]).all()
    monkeypatch.setattr("paceline.recipes.nsa.kernels.fast_selection._MOST_SCORES", 1)
    assert torch.equal(found, fast_path.select(query, keys, logsum, frame, pattern))
    alike = torch.zeros_like(keys)
    logsum = fast_path.attend_compressed(query, alike, alike, frame)[1]
    by_number = fast_path.select(query, alike, logsum, frame, pattern)
    assert torch.equal(by_number, torch_path.select(query, alike, logsum, frame, pattern))


@pytest.mark.usefixtures("most_blocks")
def test_the_past_does_not_see_the_future_nor_a_neighbour_and_bits_repeat() -> None:
    positions = make_positions((700, 324)).cuda()
    attention = build_fast(12, 2, 64, PAPER).float()
    hidden = make_hidden(positions).cuda().float()
    frame = frame_of(positions, attention, torch.float32)

    def run(given: Tensor) -> tuple[Tensor, list[Tensor]]:
        attention.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            mixed = attention(given, frame)
        mixed.float().square().sum().backward()
        return mixed.detach(), [parameter.grad.clone() for parameter in attention.parameters()]

    before, gradients = run(hidden)
    again, gradients_again = run(hidden)
    assert torch.equal(before, again)
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_again, strict=True))
    for cut in (1, 500, 699, 700, 900):
        changed = hidden.clone()
        changed[:, cut:] += 1.0
        after, _ = run(changed)
        assert torch.equal(after[:, :cut], before[:, :cut]), cut
        assert not torch.equal(after[:, cut:], before[:, cut:])
    changed = hidden.clone()
    changed[:, :700] += 1.0
    assert torch.equal(run(changed)[0][:, 700:], before[:, 700:])


def test_sums_of_products_are_exact() -> None:
    random = torch.Generator("cuda").manual_seed(0)
    out, grad = (torch.randn(2, 37, 3, 64, device="cuda", generator=random).bfloat16() for _ in range(2))
    expected = torch.einsum("bthd,bthd->bth", out.double(), grad.double())
    torch.testing.assert_close(sum_products(out, grad), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("documents", [(1500, 1, 1599), (700, 324)], ids=["by blocks", "by words"])
def test_a_layer_is_compiled_in_one_piece_and_computes_the_same(documents: tuple[int, ...]) -> None:
    """With the blocks given, because near-ties flip where a compiler rounds in other places; and selecting, in the same piece."""
    positions = make_positions(documents, (sum(documents),)).cuda()
    attention = build_fast(12, 2, 64, PAPER).float()
    hidden, upstream = (make_hidden(positions, seed=seed).cuda().float() for seed in (1, 2))
    hidden.requires_grad_()
    frame = frame_of(positions, attention, torch.float32)
    shape = (2, 2, positions.shape[1], PAPER.num_selection(positions.shape[1]))
    scores = torch.rand(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    blocks = choose_blocks(scores, positions, PAPER)

    def run(call: Callable[..., Tensor], given: Tensor | None) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            mixed = call(hidden, frame, None, given)
        return [mixed, *torch.autograd.grad(mixed, [hidden, *attention.parameters()], upstream.to(mixed.dtype))]

    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: attention(*given), fullgraph=True, dynamic=False)
    expected, found = run(attention, blocks), run(compiled, blocks)
    names = ["output", "hidden", *dict(attention.named_parameters())]
    errors = {name: relative_error(*pair) for name, pair in zip(names, zip(found, expected, strict=True), strict=True)}
    print(errors)
    assert all(error <= LIMITS[torch.bfloat16] for error in errors.values()), errors
    again = run(compiled, blocks)
    assert all(torch.equal(*pair) for pair in zip(again, found, strict=True)), "the same bits again"
    mixed, *gradients = run(compiled, None)
    assert relative_error(mixed, run(attention, None)[0]) < 5 * LIMITS[torch.bfloat16]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.usefixtures("most_blocks")
def test_the_audit_sees_every_branch_and_misses_one_that_fell_back() -> None:
    positions = make_positions((700, 324)).cuda()
    promised = ", ".join(f"{branch} {own}" for branch, own in fast_path.KERNELS.items())

    def audit(stages: Stages) -> tuple[set[str], str]:
        attention = build(12, 2, 64, PAPER, stages=stages).cuda().float()
        hidden = make_hidden(positions).cuda().float().requires_grad_()
        frame = frame_of(positions, attention, torch.float32)
        attention(hidden, frame).sum().backward()  # compiles
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            attention(hidden, frame).sum().backward()
            torch.cuda.synchronize()
        rows = ((row.key, row.count, row.self_device_time_total / 1e3) for row in profiler.key_averages())
        seen = find_attention(rows)
        return {each.backend for each in seen}, check_promise(promised, seen)

    assert audit(fast_path.FAST) == ({"nsa_range", "nsa_chosen", "nsa_score"}, "")
    assert "besides" in audit(replace(fast_path.FAST, attend_window=torch_path.attend_window))[1]


@pytest.mark.parametrize("vocabulary", [5, 258, 50_304])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_by_its_kernel(vocabulary: int, dtype: torch.dtype) -> None:
    """As cross_entropy of the same logits in float64, with its gradients in their type; nothing of what has no label."""
    torch.manual_seed(3)
    logits = (8 * torch.randn(33, vocabulary, device="cuda")).to(dtype)
    labels = torch.randint(vocabulary, (33,), device="cuda")
    labels[::4] = head.NO_LABEL
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, labels, reduction="none", ignore_index=head.NO_LABEL)
    (wanted,) = torch.autograd.grad(expected.sum(), exact)
    losses, grads = head.differentiate_by_kernel(logits, labels)
    assert relative_error(losses, expected) < 1e-6
    assert relative_error(grads, wanted) < (1e-6 if dtype == torch.float32 else 4e-3)
    assert not grads[::4].any()
    assert not losses[::4].any()


@pytest.mark.usefixtures("most_blocks")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_layer_asks_the_device_nothing() -> None:
    positions = make_positions((700, 324)).cuda()
    attention = build_fast(12, 2, 64, PAPER).float()
    hidden = make_hidden(positions).cuda().float().requires_grad_()

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            attention(hidden, frame_of(positions, attention, torch.float32)).sum().backward()

    run()  # compiles
    try:
        torch.cuda.set_sync_debug_mode("error")
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_linear_in_length() -> None:
    attention = build_fast(12, 2, 64, PAPER).float()
    peaks = []
    for length in (16384, 32768, 65536):
        positions = make_positions((length,)).cuda()
        hidden = make_hidden(positions).cuda().float().requires_grad_()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            attention(hidden, frame_of(positions, attention, torch.float32)).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.2 * peaks[0]
    assert peaks[2] < 2.2 * peaks[1]
