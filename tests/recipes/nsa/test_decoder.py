"""A prompt and then token by token: the same logits as the whole at once, and what decoding reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from paceline.recipes.nsa import decoder as decoder_module
from paceline.recipes.nsa.attention import Shape
from paceline.recipes.nsa.cache import DenseCache, SparseCache
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.decoder import Decoder
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Pattern, one_document
from paceline.recipes.nsa.stages import States
from paceline.recipes.nsa.torch_path import TORCH
from tests.recipes.nsa.attentions import SMALL, relative_error

VOCABULARY, LONGEST = 50, 600
PATTERNS = {"small": SMALL, "the paper's, fewer selected": replace(Pattern(), selected=4, window=100)}


def build(pattern: Pattern, kernel: str | None = None, dtype: torch.dtype = torch.float64) -> LanguageModel:
    torch.manual_seed(0)
    shape = Shape(32, 4, 2, 8, pattern)
    model = LanguageModel(VOCABULARY, 2, shape, 64, stages=TORCH, kernel=kernel, is_packed=False).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or "bias" in name:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model.eval()


def whole(model: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logits after every token, in one forward."""
    with torch.no_grad():
        hidden = model.encode(tokens, one_document(*tokens.shape, tokens.device))
        return hidden @ model.token_embedding.weight.T


def check(model: LanguageModel, prompts: list[int], length: int, limit: float) -> None:
    tokens = torch.randint(VOCABULARY, (2, length), generator=torch.Generator().manual_seed(5))
    expected = whole(model, tokens)
    for prompt in prompts:
        decoder = Decoder(model)
        found = decoder.prefill(tokens[:, :prompt])
        assert relative_error(found, expected[:, prompt - 1]) < limit, f"prefill of {prompt}"
        for t in range(prompt, length):
            found = decoder.step(tokens[:, t])
            assert relative_error(found, expected[:, t]) < limit, f"prompt {prompt}, token {t}"
        assert decoder.length == length


@pytest.mark.parametrize("name", PATTERNS)
def test_every_token_of_a_text_after_prompts_of_some_lengths(name: str) -> None:
    check(build(PATTERNS[name]), [1, 33, 150], 170, limit=1e-6)


def test_single_precision() -> None:
    check(build(SMALL, dtype=torch.float32), [1, 70], 100, limit=1e-5)


def test_the_dense_twin() -> None:
    check(build(SMALL, kernel="sdpa"), [1, 50], 60, limit=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_length_to_600(name: str) -> None:
    """Token by token from the first on, and a prompt of every length with one token after it."""
    model = build(PATTERNS[name])
    check(model, [1], LONGEST, limit=1e-6)
    tokens = torch.randint(VOCABULARY, (1, LONGEST), generator=torch.Generator().manual_seed(5))
    expected = whole(model, tokens)
    for prompt in range(1, LONGEST):
        decoder = Decoder(model)
        assert relative_error(decoder.prefill(tokens[:, :prompt]), expected[:, prompt - 1]) < 1e-6, prompt
        assert relative_error(decoder.step(tokens[:, prompt]), expected[:, prompt]) < 1e-6, prompt


def test_decoding_64k_tokens_reads_a_fraction_of_what_dense_attention_does() -> None:
    """One layer of the 125M shape, in fp32; the prompt's states are made up."""
    length, groups, width = 65_536, 2, 64
    pattern = Pattern()
    tokens = torch.zeros(1, length, groups, width)
    compress = Compression(pattern.block, width, 1)
    sparse, dense = SparseCache(pattern), DenseCache()
    with torch.no_grad():
        sparse.append(States(*[tokens] * 6), compress, compress)
        dense.append(tokens, tokens)
        sparse.bytes_read = 0
        # A whole stride of tokens, and the block that they end, on the account of a single query.
        sparse.append(States(*[tokens[:, : pattern.stride]] * 6), compress, compress)
        sparse.attend(torch.randn(1, 1, 12, width))
        dense.attend(torch.randn(1, 1, 12, width))
    assert dense.bytes_read == length * groups * width * 2 * 4
    assert dense.bytes_read / sparse.bytes_read > 5


def test_what_is_read_is_counted_by_the_geometry() -> None:
    """After 600 tokens: 74 compressed blocks of 8 every 4 … counted by hand."""
    length, groups, width = 603, 1, 4
    states = torch.randn(1, length, groups, width, dtype=torch.float32)
    compress = Compression(SMALL.block, width, 3)
    cache = SparseCache(SMALL)
    with torch.no_grad():
        cache.append(States(*[states] * 6), compress, compress)
        cache.bytes_read = 0
        cache.attend(torch.randn(1, 1, 2, width))
    num_compressed = (603 - 8) // 4 + 1
    num_selected = 3 * 16 + (602 % 16 + 1)
    assert cache.bytes_read == 2 * 4 * width * (num_compressed + num_selected + 24)


class Repeatable:
    """A cache whose steps can be recorded: it keeps where each was, on the device, and moves when it is full."""

    can_replay = True

    def __init__(self) -> None:
        self.length, self.bytes_read, self.capacity = 0, 0, 0
        self.positions: list[int] = []

    def append(self, states: States, *_: object) -> None:
        self.length = states.selected_keys.shape[1]
        self.capacity = self.length + 2

    def make_room(self) -> bool:
        is_full = self.length == self.capacity
        self.capacity += 3 if is_full else 0
        return is_full

    def step(self, query_B1HD: torch.Tensor, states: object, gates: object, moment: Moment, *_: object) -> torch.Tensor:
        self.positions.append(int(moment.position_1))
        return torch.zeros_like(query_B1HD)

    def advance(self) -> None:
        self.length += 1


class FakeRecorder:
    """Runs again what it recorded, into the same memory, as a graph does."""

    records = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def warm_up(self, compute: Callable[[], torch.Tensor]) -> None:
        compute()

    def record(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        type(self).records += 1
        result = torch.zeros_like(compute())
        return lambda: result.copy_(compute()), result


def test_a_step_is_recorded_once_and_replayed_until_the_caches_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "Recorder", FakeRecorder)
    monkeypatch.setattr(FakeRecorder, "records", 0)
    model = build(SMALL)
    caches = [Repeatable(), Repeatable()]
    recorded, launched = Decoder(model, caches), Decoder(model, [Repeatable(), Repeatable()], can_replay=False)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(5))
    for decoder in (recorded, launched):
        decoder.prefill(tokens[:, :4])
    kept, expected = [], []
    for t in range(4, 12):
        kept.append(recorded.step(tokens[:, t]))
        expected.append(launched.step(tokens[:, t]))
        assert recorded.is_replaying
        assert not launched.is_replaying
    assert all(torch.equal(a, b) for a, b in zip(kept, expected, strict=True)), "no replay overwrites what was given"
    assert recorded.length == launched.length == 12
    assert FakeRecorder.records == 3, "first at 4 tokens, with room for 6, then for 9 and 12"
    replayed = [t for t in caches[1].positions if caches[1].positions.count(t) == 1]
    assert replayed == [5, 7, 8, 10, 11]


def test_what_cannot_be_recorded_is_told_once_and_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, compute: object) -> None:
        raise RuntimeError("not here\nand more")

    monkeypatch.setattr(FakeRecorder, "record", refuse)
    monkeypatch.setattr(decoder_module, "Recorder", FakeRecorder)
    decoder = Decoder(build(SMALL), [Repeatable(), Repeatable()])
    tokens = torch.zeros(2, 6, dtype=torch.int64)
    decoder.prefill(tokens[:, :4])
    with pytest.warns(UserWarning, match="without a CUDA graph, more slowly.*: not here$"):
        decoder.step(tokens[:, 4])
    decoder.step(tokens[:, 5])
    assert decoder.length == 6
