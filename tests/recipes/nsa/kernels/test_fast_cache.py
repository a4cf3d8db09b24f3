"""What of it runs without a GPU: what a prompt leaves, how it grows, what it counts; tests/gpu/test_decode.py has the kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.nsa.cache import SparseCache
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels import fast_cache
from paceline.recipes.nsa.kernels.fast_cache import FastCache, _build_stores, _capacity
from paceline.recipes.nsa.kernels.fast_decode import build_phi, build_room
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.moment import build_moment
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.rotary import build_rotation
from paceline.recipes.nsa.stages import States
from paceline.recipes.nsa.torch_path import TORCH
from tests.recipes.nsa.attentions import SMALL, build, relative_error

GROUPS, WIDTH = 2, 8


def fill(length: int, rows: int = 2, pattern: Pattern = SMALL) -> tuple[FastCache, States, Compression]:
    torch.manual_seed(0)
    states = States(*(torch.randn(rows, length, GROUPS, WIDTH) for _ in range(6)))
    compression = Compression(pattern.block, WIDTH, 5)
    cache = FastCache(pattern)
    with torch.no_grad():
        cache.append(states, compression, compression)
    return cache, states, compression


def test_which_cache_follows_from_the_stages() -> None:
    assert isinstance(build(stages=TORCH).build_cache(), SparseCache)
    assert isinstance(build(stages=FAST).build_cache(), FastCache)
    assert isinstance(build(stages=None).build_cache(), SparseCache), "the reference fills none itself"


@pytest.mark.parametrize("length", [1, 7, 8, 23, 24, 25, 100])
def test_what_a_prompt_leaves(length: int) -> None:
    cache, states, compression = fill(length)
    stores = cache.stores
    assert torch.equal(stores.selected_keys[:, :, :length].transpose(1, 2), states.selected_keys)
    for t in range(max(0, length - SMALL.window), length):
        assert torch.equal(stores.window_values[:, :, t % SMALL.window], states.window_values[:, t])
    with torch.no_grad():
        for number in range(SMALL.num_compressed(length)):
            block = states.compressed_values[:, number * 4 : number * 4 + 8].transpose(1, 2)
            found = stores.compressed_values[:, :, number]
            torch.testing.assert_close(found, compression(block[:, None])[:, 0])


def test_a_block_that_the_prompt_began_ends_as_if_compressed_at_once() -> None:
    """With one token more: the kernel adds its share of φ's first layer, and then the second layer and the mean."""
    length = 27
    cache, states, compression = fill(length)
    begin = SMALL.num_compressed(length) * SMALL.stride
    assert begin + SMALL.block == length + 1, "so that the next token ends it"
    last = torch.randn(2, GROUPS, WIDTH)
    with torch.no_grad():
        raw = torch.cat((states.compressed_keys[:, begin:].transpose(1, 2), last[:, :, None]), dim=2)
        number = begin // SMALL.stride
        place = ((length - 1) % 2, slice(None), slice(None), 0, number % 2)
        phi = build_phi(compression)
        hidden = cache.stores.hidden[place] + last @ phi.expand[:, -WIDTH:].T
        mean = (cache.stores.sums[place] + last) / SMALL.block
        found = mean + F.silu(hidden) @ phi.contract.T
        assert relative_error(found, compression(raw[:, None])[:, 0]) < 1e-6


def test_a_profile_shows_what_is_launched_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        opened.append(name)
        yield

    states = States(*(torch.randn(1, 9, GROUPS, WIDTH) for _ in range(6)))
    compression, cache = Compression(SMALL.block, WIDTH, 5), FastCache(SMALL, mark)
    monkeypatch.setattr(fast_cache, "append_token", lambda *given: None)
    monkeypatch.setattr(fast_cache, "attend_token", lambda *given: torch.zeros(1, 4, WIDTH))
    query, gates = torch.randn(1, 1, 4, WIDTH), torch.rand(1, 1, 4, 3)
    with torch.no_grad():
        cache.append(states, compression, compression)
        moment = build_moment(torch.tensor([9]), SMALL, WIDTH, torch.float32)
        cache.step(query, states, gates, moment, compression, compression)
    assert opened == ["compress", "append", "attend"]


def test_room_doubles_and_nothing_is_lost() -> None:
    cache, states, _ = fill(255)
    assert cache.stores.selected_keys.shape[2] == 256
    assert not cache.make_room(), "one token more fits"
    cache.advance()
    before = cache.stores
    assert cache.make_room()
    after = cache.stores
    assert after.selected_keys.shape[2] == 512
    assert after.compressed_keys.shape[2] == SMALL.num_slots(512)
    assert torch.equal(after.selected_keys[:, :, :255].transpose(1, 2), states.selected_keys)
    num_blocks = SMALL.num_compressed(255)
    assert torch.equal(after.compressed_values[:, :, :num_blocks], before.compressed_values[:, :, :num_blocks])
    assert after.hidden is before.hidden
    assert not cache.make_room()


@pytest.mark.parametrize("length", [1, 20, 602])
def test_what_is_read_is_what_plain_torch_reads(length: int) -> None:
    """But for compressing: it reads a block's tokens where this cache reads sums."""
    cache, states, compression = fill(length)
    plain = SparseCache(SMALL)
    one = States(*(each[:, :1] for each in states))
    with torch.no_grad():
        plain.append(states, compression, compression)
        assert cache.bytes_read == plain.bytes_read
        plain.append(one, compression, compression)
        cache.bytes_read = plain.bytes_read = 0
        plain.attend(torch.randn(2, 1, 4, WIDTH))
    cache.advance()
    covers, rows = SMALL.block // SMALL.stride, 2
    sums = 4 * rows * GROUPS * 2 * covers * (5 + WIDTH)
    assert cache.length == plain.length
    assert cache.bytes_read == plain.bytes_read + sums


@pytest.mark.parametrize("rows", [1, 3, 16, 600])
@pytest.mark.parametrize("length", [1, 255, 5000])
def test_parts_hold_all_that_there_is_room_for(rows: int, length: int) -> None:
    states = States(*[torch.empty(rows, length, GROUPS, 64, device="meta")] * 6)
    stores = _build_stores(states, _capacity(length), Pattern(), 128)
    room = build_room(stores, 12, Pattern())
    slots = stores.compressed_keys.shape[2]
    assert room.splits * room.per_part >= slots > (room.splits - 1) * room.per_part
    assert room.per_part % room.tile == 0
    assert room.near * room.tile >= 512
    assert 1 <= room.chosen <= 32
    assert room.parts.shape[1] == room.splits + room.near + room.chosen


def test_a_moment_knows_the_angles_of_its_token_and_of_the_block_that_ends_there() -> None:
    moment = build_moment(torch.tensor([100]), SMALL, 16, torch.float64)
    here = build_rotation(torch.tensor([[100]]), 16, torch.float64)
    begin = build_rotation(torch.tensor([[93]]), 16, torch.float64)
    assert torch.equal(moment.rotation.cosine, here.cosine)
    assert torch.equal(moment.begin_rotation.sine, begin.sine)
