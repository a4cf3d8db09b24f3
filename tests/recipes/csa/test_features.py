"""wav2vec2's first layers as matrix products: what its own convolutions make, with the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv1d, pad

from paceline.recipes.csa.features import BlockProduct, FrameLayer, SampleLayer
from paceline.recipes.csa.positions import PositionLayer
from paceline.recipes.csa.speech import SpeechEncoder, count_frames

KERNELS = [(3, 2), (2, 2), (16, 8), (8, 5), (1, 2), (7, 2)]
"""with their strides: overlapping, side by side, with gaps, over several blocks"""


def original(kind: str, kernel: int, stride: int, bias: bool):
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2 import modeling_wav2vec2 as wav2vec2

    sizes = {"conv_dim": (6, 5), "conv_kernel": (kernel, kernel), "conv_stride": (stride, stride), "conv_bias": bias}
    config = Wav2Vec2Config(**sizes, num_feat_extract_layers=2)
    torch.manual_seed(3)
    layer = getattr(wav2vec2, f"Wav2Vec2{kind}ConvLayer")(config, 0 if kind == "GroupNorm" else 1).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("kind", ["NoLayerNorm", "LayerNorm"])
@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
def test_a_layer_is_the_convolution(kind, kernel, stride):
    layer = original(kind, kernel, stride, bias=kernel % 2 == 1)
    frames = torch.randn(3, 8 * stride, 6, dtype=torch.float64, requires_grad=True)
    expected = layer(frames.transpose(1, 2)).transpose(1, 2)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), [frames, *layer.parameters()])
    ours = FrameLayer(layer)
    assert dict(ours.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    made = ours(frames)[:, : expected.shape[1]]
    found = torch.autograd.grad((made * weights).sum(), [frames, *layer.parameters()])
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("kernel", [1, 3, 4, 9])
def test_gradients_of_a_product_of_blocks(blocks, kernel):
    torch.manual_seed(0)
    given = torch.randn(blocks, 4, dtype=torch.float64, requires_grad=True)
    parts = [
        torch.randn(3, len(part), dtype=torch.float64, requires_grad=True) for part in torch.arange(kernel).split(4)
    ]
    assert torch.autograd.gradcheck(BlockProduct.apply, (given, *parts))
    whole = torch.cat(parts, 1)[:, None]
    expected = conv1d(pad(given.reshape(1, 1, -1), (0, kernel)), whole, stride=4)[0, :, :blocks].T
    torch.testing.assert_close(BlockProduct.apply(given, *parts), expected)


@pytest.mark.timeout(120)
def test_rows_of_any_length_are_compiled_once():
    """More than eight versions of a layer, and a run would go on without its compiler."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    layer = torch.compile(FrameLayer(original("NoLayerNorm", 3, 2, bias=False)), backend=counter, dynamic=True)
    for length in (64, 32, 48, 128, 20, 96, 36, 80, 112, 66):
        layer(torch.randn(3, length, 6, dtype=torch.float64, requires_grad=True)).sum().backward()
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize(("kernel", "stride"), [(10, 5), (16, 8), (4, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_first_layer_normalises_over_what_is_there(kernel, stride, bias):
    """Each row as wav2vec2's own layer has it when the row is alone; weak sound on a strong hum, too."""
    layer = original("GroupNorm", kernel, stride, bias)
    samples = torch.tensor([kernel + 3 * stride, 40 * stride, 31 * stride + 2])
    audio = torch.randn(3, 40 * stride, dtype=torch.float64) * 1e-3 + torch.arange(40 * stride).div(50).sin() + 3
    parameters = [*layer.parameters()]
    ours = SampleLayer(layer)(audio, samples)
    for row, number in enumerate(samples.tolist()):
        expected = layer(audio[row, None, None, :number])[0].T
        found = ours[row, : len(expected)]
        torch.testing.assert_close(
            found, expected, rtol=1e-4, atol=1e-6
        )  # torch sums the hum's variance in float64, too
        weights = torch.randn_like(expected)
        wanted = torch.autograd.grad((expected * weights).sum(), parameters)
        by = torch.autograd.grad((found * weights).sum(), parameters, retain_graph=True)
        for one, other in zip(by, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()) + 1e-9)


@pytest.mark.parametrize("kernel", [4, 16, 31, 128])
@pytest.mark.parametrize("length", [1, 5, 32, 67])
def test_the_convolution_of_positions(kernel, length):
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PositionalConvEmbedding

    torch.manual_seed(1)
    config = Wav2Vec2Config(hidden_size=12, num_conv_pos_embeddings=kernel, num_conv_pos_embedding_groups=3)
    original = Wav2Vec2PositionalConvEmbedding(config).double()
    torch.nn.init.normal_(original.conv.bias)
    ours = PositionLayer(original)
    assert dict(ours.named_parameters()).keys() == dict(original.named_parameters()).keys()
    hidden = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
    expected, made = original(hidden), ours(hidden)
    torch.testing.assert_close(made, expected)
    weights = torch.randn_like(expected)
    given = [hidden, *original.parameters()]
    wanted = torch.autograd.grad((expected * weights).sum(), given)
    torch.testing.assert_close(torch.autograd.grad((made * weights).sum(), given), wanted)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_the_frames_are_those_of_wav2vec2(norm):
    """The base shape of the first layers, one row of any length: the original's frames, one for one."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = Wav2Vec2Config(
        **small, conv_dim=(8,) * 7, num_conv_pos_embedding_groups=4, feat_extract_norm=norm, layerdrop=0.0
    )
    config._attn_implementation = "sdpa"
    model = Wav2Vec2Model(config).eval()
    for length in (400, 719, 720, 3_999, 16_000):
        audio = torch.randn(1, length)
        model_again = Wav2Vec2Model(config).eval()
        model_again.load_state_dict(model.state_dict())
        with torch.no_grad():
            expected = model(audio).last_hidden_state
            found, mask = SpeechEncoder(model_again, "sdpa")(audio, torch.tensor([length]))
        assert int(mask.sum()) == expected.shape[1] == count_frames(config, length)
        torch.testing.assert_close(found[:, : expected.shape[1]], expected, rtol=1e-4, atol=2e-5)
