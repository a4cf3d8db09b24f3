"""The checksum of parameters sees what changed, and what only moved."""

from __future__ import annotations

import torch

from paceline.engine.desync import checksum_parameters


def changed(change) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(6, 6), torch.nn.Linear(6, 4), torch.nn.LayerNorm(4))
    with torch.no_grad():
        model[2].weight.normal_()
    before = checksum_parameters(model)
    assert torch.equal(before, checksum_parameters(model))
    with torch.no_grad():
        change(model)
    return not torch.equal(before, checksum_parameters(model))


def test_every_kind_of_difference():
    def last_bit(model):
        weight = model[1].weight.view(torch.int32)
        weight[2, 3] ^= 1

    assert changed(last_bit)
    assert changed(lambda model: model[0].weight.copy_(model[0].weight.T.clone()))
    assert changed(lambda model: model[0].weight.copy_(model[0].weight.flip(0).clone()))
    assert changed(lambda model: model[1].weight.copy_(model[1].weight.flip(1).clone()))
    assert changed(lambda model: model[2].weight.copy_(model[2].weight.roll(1).clone()))
    assert not changed(lambda model: None)
