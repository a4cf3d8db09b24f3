"""From hidden states to losses, some tokens at once and together with the gradients: the logits of all tokens never exist at the same time.

    total = sum_losses(hidden_TW, weights_VW, labels_T)              a scalar in fp32, summed over the labels
    losses_T, is_right_T = score_tokens(hidden_TW, weights_VW, labels_T)      for an evaluation

Products run in the autocast's type, the softmax in fp32. Gradients are computed with the losses, so that backward only scales them and
nothing is computed twice. On a GPU a kernel makes gradients of logits in their own memory. How many tokens make a part follows from shapes
and types alone.

Shapes: T tokens, C tokens of a part, W width, V vocabulary.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.recipes.nsa.batch import NO_LABEL

MOST_BYTES = 2**30
"""of a part's logits: 1 GiB, so that the products are large and their sums few"""
MOST_FP16_TOKENS = 8192
"""of a part in fp16: weights' gradients are sums over a part, which no scale of the loss could keep from overflowing; parts are summed in fp32"""
_ROWS = 128
"""parts hold a multiple of it: matrix products of a GPU come in such tiles"""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sum_losses(hidden_TW: Tensor, weights_VW: Tensor, labels_T: Tensor) -> Tensor:
    """Never compiled: products and one kernel, many times over, would take a compiler minutes and gain nothing."""
    device = hidden_TW.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TW.dtype
    if not torch.is_grad_enabled():
        hidden_TW, weights_VW = hidden_TW.detach(), weights_VW.detach()
    total: Tensor = _SummedLosses.apply(hidden_TW, weights_VW, labels_T, dtype)  # type: ignore[no-untyped-call]
    return total


def score_tokens(hidden_TW: Tensor, weights_VW: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, whether the label is the likeliest token) of each token, 0 and false where it has no label; without gradients."""
    losses, are_right = [], []
    with torch.no_grad():
        for part in split_tokens(len(hidden_TW), len(weights_VW), torch.float32):
            logits = _widened(hidden_TW[part] @ weights_VW.to(hidden_TW.dtype).T)
            labels = labels_T[part]
            has_label = labels != NO_LABEL
            of_label = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
            losses.append((logits.logsumexp(1) - of_label).masked_fill(~has_label, 0.0))
            are_right.append((logits.argmax(1) == labels) & has_label)
    return torch.cat(losses), torch.cat(are_right)


def split_tokens(num_tokens: int, vocabulary: int, dtype: torch.dtype) -> list[slice]:
    """Parts whose logits, of that type, are few enough."""
    at_once = max(1, MOST_BYTES // (dtype.itemsize * vocabulary))
    if dtype == torch.float16:
        at_once = min(at_once, MOST_FP16_TOKENS)
    at_once = at_once // _ROWS * _ROWS or at_once
    return [slice(start, min(start + at_once, num_tokens)) for start in range(0, num_tokens, at_once)]


class _SummedLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TW: Tensor, weights_VW: Tensor, labels_T: Tensor, dtype: torch.dtype) -> Tensor:
        total = _widened(hidden_TW.new_zeros(()))
        needs_gradient = any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden_TW, dtype=total.dtype) if needs_gradient else None
        grad_weights = torch.zeros_like(weights_VW) if needs_gradient else None
        narrow_weights = weights_VW.to(dtype)
        with torch.autocast(hidden_TW.device.type, enabled=False):
            for part in split_tokens(len(hidden_TW), len(weights_VW), dtype):
                hidden = hidden_TW[part].to(dtype)
                losses, grads = _differentiate(hidden @ narrow_weights.T, labels_T[part])
                total = total + losses.sum()
                if grad_hidden is not None and grad_weights is not None:
                    grad_hidden[part] = grads @ narrow_weights
                    grad_weights += grads.T @ hidden
        ctx.save_for_backward(grad_hidden, grad_weights)
        ctx.dtype = hidden_TW.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weights = ctx.saved_tensors
        # Rounded after the product, which may hold the factor that saves fp16 from underflow.
        return (grad_hidden * grad_total).to(ctx.dtype), grad_weights * grad_total, None, None


def _differentiate(logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
    """(loss of each token, gradients of its logits in their type), 0 where it has no label; the logits are used up."""
    if logits_CV.is_cuda and logits_CV.dtype != torch.float64 and find_spec("triton") is not None:
        return differentiate_by_kernel(logits_CV, labels_C)
    logits = _widened(logits_CV)
    has_label, targets = labels_C != NO_LABEL, labels_C.clamp(min=0)[:, None]
    logsum = logits.logsumexp(1, keepdim=True)
    losses = (logsum - logits.gather(1, targets))[:, 0].masked_fill(~has_label, 0.0)
    # softmax - 1 at the label, in the memory of the logits.
    grads = logits.sub_(logsum).exp_()
    grads.scatter_add_(1, targets, torch.full_like(losses, -1.0)[:, None])
    return losses, grads.masked_fill_(~has_label[:, None], 0.0).to(logits_CV.dtype)


def differentiate_by_kernel(logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
    from paceline.recipes.nsa.kernels.loss_kernels import nsa_loss_kernel

    count, vocabulary = logits_CV.shape
    losses = logits_CV.new_empty(count, dtype=torch.float32)
    block = min(4096, 1 << (vocabulary - 1).bit_length())
    nsa_loss_kernel[(count,)](logits_CV, labels_C, losses, vocabulary, NO_LABEL=NO_LABEL, BLOCK=block, num_warps=8)
    return losses, logits_CV


def _widened(numbers: Tensor) -> Tensor:
    return numbers if numbers.dtype == torch.float64 else numbers.float()
