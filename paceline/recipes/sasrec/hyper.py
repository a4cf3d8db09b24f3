"""mHC, manifold-constrained hyper-connections (arXiv 2512.24880): n residual streams that persist through all layers.

A layer F (attention, or feed-forward) reads one mixture of the streams and writes to all of them:

    u = pre · x          x' = res · x + postᵀ F(u)          x (n, D), pre (n), post (n), res (n, n), for each position

pre, post and res follow from the state and from learned biases; res is made doubly stochastic, so streams are mixed, never amplified.
Tensor functions first, then the modules. Shapes: T positions, n streams, D width, M = 2n + n² mapping numbers (pre, post, res).

Where this goes beyond the paper: streams start as the embedding plus a small learned offset each, and end as a learned weighted mean.
Started as exact copies and ended as a plain mean, the first and the last res would change nothing, as rows and columns sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.engine.seen import Seen
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.hyper_ends import fused_close, fused_open
from paceline.recipes.sasrec.hyper_fused import fused_available, fused_read, fused_write
from paceline.recipes.sasrec.norm import Norm
from paceline.recipes.sasrec.sinkhorn import sinkhorn

_EPSILON = 1e-6
_FAVOUR = 0.7
"""the share of a layer's input that comes from its favoured stream alone at first; the rest comes from all alike"""
_STAY = 0.9
"""the share of a stream that stays in it at first, when a layer mixes streams"""
_TILT = 0.25
"""how far apart the biases are with which a layer writes to neighbouring streams at first"""


def project_streams(x_TnD: Tensor, project_MK: Tensor) -> Tensor:
    """(T, M): the root-mean-square-normed state, all streams in one row of K = n·D, times the projection; fp32 after the product."""
    flat_TK = x_TnD.flatten(1)
    # A row's norm is one number: dividing after the product is the same, and the normed state is never written.
    rms_T1 = (flat_TK.float().square().mean(1, keepdim=True) + _EPSILON).sqrt()
    return F.linear(flat_TK, project_MK.to(flat_TK.dtype)).float() / rms_T1


def mappings(raw_TM: Tensor, gates_3: Tensor, bias_M: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """pre (T, n) in (0, 1), post (T, n) in (0, 2), res (T, n, n) doubly stochastic, in fp32."""
    streams = math.isqrt(1 + raw_TM.shape[1]) - 1
    sizes = [streams, streams, streams**2]
    raw_pre, raw_post, raw_res = torch.split(raw_TM, sizes, dim=1)
    bias_pre, bias_post, bias_res = torch.split(bias_M, sizes)
    pre_Tn = torch.sigmoid(gates_3[0] * raw_pre + bias_pre)
    post_Tn = 2 * torch.sigmoid(gates_3[1] * raw_post + bias_post)
    res_Tnn = sinkhorn((gates_3[2] * raw_res + bias_res).view(-1, streams, streams), iterations)
    return pre_Tn, post_Tn, res_Tnn


def read_streams(x_TnD: Tensor, pre_Tn: Tensor) -> Tensor:
    """(T, D): what a layer gets to see."""
    return (pre_Tn.to(x_TnD.dtype)[:, None] @ x_TnD).squeeze(1)


def write_streams(x_TnD: Tensor, res_Tnn: Tensor, post_Tn: Tensor, y_TD: Tensor) -> Tensor:
    """(T, n, D): the streams mixed, with the layer's result written to each; one product [res | post] · [x ; y]."""
    weights_Tnm = torch.cat((res_Tnn, post_Tn[:, :, None]), dim=2).to(x_TnD.dtype)
    return weights_Tnm @ torch.cat((x_TnD, y_TD.to(x_TnD.dtype)[:, None]), dim=1)


class Streams(nn.Module):
    """Where streams begin and end."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self._fp32 = config.mhc_fp32
        self.offset_embedding = nn.Parameter(torch.randn(config.streams, config.width) * 0.02)
        self.bias = nn.Parameter(_centred(config.streams))
        self._seen = Seen(empty=0.0)

    def open(self, hidden_TD: Tensor) -> Tensor:
        """(T, n, D), in fp32, or with model.mhc_fp32=false in autocast's type: the streams' type decides how they are mixed."""
        device_type, dtype = hidden_TD.device.type, self.offset_embedding.dtype
        if not self._fp32 and torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        if fused_available(hidden_TD[:, None].expand(-1, len(self.offset_embedding), -1)):
            return fused_open(hidden_TD, self.offset_embedding, dtype)
        return (hidden_TD[:, None] + self.offset_embedding).to(dtype)

    def close(self, x_TnD: Tensor) -> Tensor:
        """(T, D): their weighted mean."""
        if self.training:
            self._seen.keep(x_TnD)
        with torch.autocast(x_TnD.device.type, enabled=False):
            weight_n = self.bias.softmax(0)
            if fused_available(x_TnD):
                return fused_close(x_TnD, weight_n)
            return read_streams(x_TnD, weight_n.expand(len(x_TnD), -1))

    def spread(self) -> Tensor | None:
        """How far the streams of the last training forward lie from their mean, relative to their size; None: there was none yet."""
        seen_TnD = self._seen.read()
        if seen_TnD is None:
            return None
        x_TnD = seen_TnD.float()
        return ((x_TnD - x_TnD.mean(1, keepdim=True)).square().mean() / x_TnD.square().mean()).sqrt()


class HyperResidual(nn.Module):
    """The connection around one layer, in place of x + F(x). With n = 1 and pre = post = res = 1 it is x + F(x).

    Pre-norm norms u, post-norm the streams that are left, each for itself. At first the connection is close to a plain residual one:
    pre sums to about 1, post averages 1, res is near the identity. Layer number i favours stream i mod n, and writes to the streams unevenly.
    """

    def __init__(self, config: Model, number: int) -> None:
        super().__init__()
        streams = config.streams
        self._norm_first = config.norm == "pre"
        self._iterations = config.sinkhorn_iterations
        self.project = nn.Parameter(torch.randn(2 * streams + streams**2, streams * config.width) * 0.02)
        self.gates = nn.Parameter(torch.full((3,), config.mhc_gate))
        self.bias = nn.Parameter(_starting_bias(streams, number))
        self.norm = Norm(config.width, keeps_fp32=config.norm == "post")
        self.dropout = nn.Dropout(config.dropout)
        self._seen = Seen(empty=1 / streams)

    def forward(self, x_TnD: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast(x_TnD.device.type, enabled=False):
            read_TD, res_Tnn, write = self._read(x_TnD)
        if self.training:
            self._seen.keep(res_Tnn)
        y_TD = self.dropout(layer(self.norm(read_TD) if self._norm_first else read_TD))
        with torch.autocast(x_TnD.device.type, enabled=False):
            x_TnD = write(y_TD)
        return x_TnD if self._norm_first else self.norm(x_TnD).to(x_TnD.dtype)

    def _read(self, x_TnD: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """What the layer gets to see, the residual mapping, and what writes the layer's result."""
        if fused_available(x_TnD):
            read_TD, mixed_TnD, post_nT, res_nnT = fused_read(
                x_TnD, self.project, self.gates, self.bias, self._iterations, _EPSILON
            )
            return read_TD, res_nnT.permute(2, 0, 1), partial(fused_write, mixed_TnD, post_nT, res_nnT)
        raw_TM = project_streams(x_TnD, self.project)
        pre_Tn, post_Tn, res_Tnn = mappings(raw_TM, self.gates, self.bias, self._iterations)
        return read_streams(x_TnD, pre_Tn), res_Tnn, partial(write_streams, x_TnD, res_Tnn, post_Tn)

    def worst_deviation(self) -> Tensor | None:
        """The largest |sum - 1| of a row or column of the last training forward's residual mappings; None: there was none yet."""
        res_Tnn = self._seen.read()
        if res_Tnn is None:
            return None
        rows_Tn, columns_Tn = res_Tnn.sum(2), res_Tnn.sum(1)
        return torch.maximum((rows_Tn - 1).abs().amax(), (columns_Tn - 1).abs().amax())


def _centred(streams: int) -> Tensor:
    """Numbers around 0, a tilt apart."""
    return (torch.arange(streams) - (streams - 1) / 2) * _TILT


def _starting_bias(streams: int, number: int) -> Tensor:
    """(M,) biases of pre, post and res; see HyperResidual for what they are to give."""
    favoured = number % streams
    pre_n = torch.full((streams,), (1 - _FAVOUR) / streams)
    pre_n[favoured] += _FAVOUR
    # A single stream would be read by 1, which no sigmoid reaches.
    bias_pre = torch.logit(pre_n.clamp(max=0.95))
    bias_post = _centred(streams).roll(favoured)
    bias_res = torch.eye(streams) * math.log(max(1, streams - 1) * _STAY / (1 - _STAY))
    return torch.cat((bias_pre, bias_post, bias_res.flatten()))
