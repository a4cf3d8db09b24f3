import pytest
import torch

from paceline.recipes.sasrec.hyper import HyperResidual, mappings, project_streams, read_streams, write_streams
from paceline.recipes.sasrec.sinkhorn import sinkhorn
from tests.recipes.sasrec.recommenders import build, encode_padded, make_batch


def connections_of(model: torch.nn.Module) -> list[HyperResidual]:
    return [module for module in model.modules() if isinstance(module, HyperResidual)]


def residual_mappings(model: torch.nn.Module) -> list[torch.Tensor]:
    """(T, n, n) of each layer, of the real module in a real forward."""
    batch = make_batch()
    model.train()
    model(batch)
    return [connection._seen.read()[: int(batch["lengths"].sum())] for connection in connections_of(model)]


@pytest.mark.parametrize("width", [16, 64])
def test_at_the_start_rows_sum_to_one_exactly_and_columns_nearly(width: int) -> None:
    for res in residual_mappings(build(mhc=True, shake=0.0, width=width, blocks=3)):
        assert res.shape[1:] == (4, 4)
        torch.testing.assert_close(res.sum(2), torch.ones_like(res.sum(2)), rtol=0, atol=1e-6)
        torch.testing.assert_close(res.sum(1), torch.ones_like(res.sum(1)), rtol=0, atol=1e-4)
        assert (res > 0).all()
        assert (res.diagonal(dim1=1, dim2=2) > 0.85).all()


def test_mappings_streams_and_layers_by_the_formula() -> None:
    """Against loops in float64, of the norm, each mapping, the reading and the writing."""
    random = torch.Generator().manual_seed(1)
    streams, width = 3, 5
    x = torch.randn(2, streams, width, dtype=torch.float64, generator=random)
    project = torch.randn(2 * streams + streams**2, streams * width, dtype=torch.float64, generator=random)
    bias = torch.randn(2 * streams + streams**2, dtype=torch.float64, generator=random)
    gates = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    raw = project_streams(x, project).double()
    pre, post, res = mappings(raw, gates, bias, 20)
    y = torch.randn(2, width, dtype=torch.float64, generator=random)
    read, written = read_streams(x, pre), write_streams(x, res, post, y)
    for position in range(2):
        flat = torch.cat([x[position, stream] for stream in range(streams)])
        normed = flat / (flat.square().mean() + 1e-6).sqrt()
        numbers = [float(normed @ row) for row in project]
        torch.testing.assert_close(raw[position], torch.tensor(numbers, dtype=torch.float64), rtol=1e-5, atol=1e-5)
        for i in range(streams):
            expected_pre = torch.sigmoid(gates[0] * raw[position, i] + bias[i])
            expected_post = 2 * torch.sigmoid(gates[1] * raw[position, streams + i] + bias[streams + i])
            torch.testing.assert_close((pre[position, i], post[position, i]), (expected_pre, expected_post))
        logits = gates[2] * raw[position, 2 * streams :] + bias[2 * streams :]
        torch.testing.assert_close(res[position], sinkhorn(logits.reshape(1, streams, streams), 20)[0])
        expected = sum(pre[position, i] * x[position, i] for i in range(streams))
        torch.testing.assert_close(read[position], expected)
        for i in range(streams):
            kept = sum(res[position, i, j] * x[position, j] for j in range(streams))
            torch.testing.assert_close(written[position, i], kept + post[position, i] * y[position])


@pytest.mark.parametrize("time", [False, True])
def test_every_mapping_receives_gradient(time: bool) -> None:
    """Projection, bias and gate of pre, post and res, in every layer, the first and the last included, at the start."""
    model = build(mhc=True, time=time, shake=0.0).train()
    model(make_batch()).backward()
    for number, connection in enumerate(connections_of(model)):
        for part, (begin, end) in {"pre": (0, 4), "post": (4, 8), "res": (8, 24)}.items():
            assert connection.project.grad[begin:end].abs().amax(1).min() > 0, (number, part)
            assert connection.bias.grad[begin:end].abs().min() > 0, (number, part)
        assert connection.gates.grad.abs().min() > 0, number
    assert model.streams.bias.grad.abs().min() > 0
    assert model.streams.offset_embedding.grad.abs().min() > 0


@pytest.mark.parametrize("time", [False, True])
def test_streams_come_to_differ(time: bool) -> None:
    """By what layers write to them: their own offsets are held at 0 here, so that they start as copies of each other."""
    model = build(mhc=True, time=time, shake=0.0, dropout=0.0).train()
    model.streams.offset_embedding.requires_grad_(False).zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(20):
        model(make_batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.observe()["mhc_stream_spread"] > 0.03
    streams = model.streams._seen.read()[: int(make_batch()["lengths"].sum())]
    for first in range(4):
        for second in range(first):
            apart = (streams[:, first] - streams[:, second]).norm(dim=1) / streams[:, first].norm(dim=1)
            assert apart.min() > 0.01, (first, second)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("time", [False, True])
@torch.no_grad()
def test_one_stream_with_identity_mappings_is_the_plain_network(norm: str, time: bool) -> None:
    plain = build(norm=norm, time=time)
    model = build(mhc=True, streams=1, norm=norm, time=time)
    missing = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert all(".project" in name or ".gates" in name or ".bias" in name or "streams." in name for name in missing)
    model.streams.offset_embedding.zero_()
    for connection in connections_of(model):
        connection.gates.zero_()
        connection.bias.copy_(torch.tensor([40.0, 0.0, 0.0]))  # sigmoid(40) = 1 in fp32, 2 sigmoid(0) = 1
    batch = make_batch()
    torch.testing.assert_close(encode_padded(model, batch), encode_padded(plain, batch), rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_start_is_close_to_the_plain_network() -> None:
    plain, model = build(shake=0.0), build(mhc=True, shake=0.0)
    model.load_state_dict(plain.state_dict(), strict=False)
    batch = make_batch()
    hidden, expected = encode_padded(model, batch), encode_padded(plain, batch)
    assert torch.nn.functional.cosine_similarity(hidden, expected, dim=2)[batch["items"] > 0].min() > 0.95


def gain_of(layers: list[torch.Tensor]) -> float:
    """The largest sum of magnitudes in a row (what a signal can grow by) or a column (what a gradient can) of the layers' product."""
    product = layers[0].double()
    for layer in layers[1:]:
        product = layer.double() @ product
    return max(product.abs().sum(2).max().item(), product.abs().sum(1).max().item())


@pytest.mark.parametrize("moved", [0.25, 1.0])
def test_a_deep_stack_amplifies_nothing_where_free_hyper_connections_do(moved: float) -> None:
    """24 layers whose mapping parameters have moved from their start, as training moves them, by the same amounts in both.

    The free ones are hyper-connections without the constraint: the same projections, gates and moves of biases, on the same states,
    added to the identity that they start from, in place of Sinkhorn's result. At the start both gains are 1.
    """
    model = build(mhc=True, shake=0.0, blocks=12)
    states: dict[int, torch.Tensor] = {}
    connections = connections_of(model)
    assert len(connections) == 24
    assert gain_of(residual_mappings(model)) < 1.001
    torch.manual_seed(7)
    with torch.no_grad():
        moves = [torch.randn_like(connection.bias) * moved for connection in connections]
        for number, (connection, move) in enumerate(zip(connections, moves, strict=True)):
            connection.bias.add_(move)
            connection.gates.add_(0.1 * moved)
            connection.register_forward_pre_hook(lambda _, inputs, number=number: states.update({number: inputs[0]}))
        constrained = residual_mappings(model)
        free = []
        for number, connection in enumerate(connections):
            raw = project_streams(states[number], connection.project)[:, 8:]
            free.append(torch.eye(4) + (connection.gates[2] * raw + moves[number][8:]).unflatten(1, (4, 4)))
    assert gain_of(constrained) < 1.1
    assert gain_of(free) > 2


def test_deviation_is_that_of_the_worst_sum() -> None:
    model = build(mhc=True, shake=0.0).train()
    model(make_batch())
    connections = connections_of(model)
    for connection in connections:
        connection._seen.keep(torch.eye(4).repeat(30, 1, 1))
    assert model.observe()["mhc_deviation"] == 0
    connections[2]._seen.keep(torch.tensor([[[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]))
    assert model.observe()["mhc_deviation"] == 0.5


def test_few_iterations_are_seen_in_the_deviation() -> None:
    deviations = []
    for iterations in (1, 20):
        model = build(mhc=True, sinkhorn_iterations=iterations).train()
        model(make_batch())
        deviations.append(model.observe()["mhc_deviation"])
    assert deviations[0] > 10 * deviations[1]


def test_evaluation_leaves_what_is_observed_alone() -> None:
    model = build(mhc=True).train()
    model(make_batch())
    observed = model.observe()
    model.eval()
    model.last_hidden(make_batch(seed=5))
    assert model.observe() == observed


@pytest.mark.parametrize("streams", [1, 2, 3, 16])
def test_any_number_of_streams(streams: int) -> None:
    model = build(mhc=True, streams=streams, shake=0.0).train()
    model(make_batch()).backward()
    observed = model.observe()
    assert observed["mhc_deviation"] < 1e-3
    assert (observed["mhc_stream_spread"] > 0) == (streams > 1)


@pytest.mark.parametrize(("fp32", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_the_mixing_can_be_kept_out_of_half_precision(fp32: bool, dtype: torch.dtype) -> None:
    model = build(mhc=True, mhc_fp32=fp32)
    seen: list[torch.dtype] = []
    for connection in connections_of(model):
        connection.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0].dtype, output.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        model.encode(make_batch())
    assert set(seen) == {dtype}
