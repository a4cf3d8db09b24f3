# mypy: ignore-errors
"""The GPU kernel of the loss over a vocabulary, in Triton: each row of logits is read twice, and its gradient takes its place.

head.py launches it; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nsa_loss_kernel(logits_ptr, labels_ptr, losses_ptr, V, NO_LABEL: tl.constexpr, BLOCK: tl.constexpr):
    """One token: its loss, and softmax - 1 at the label in place of its logits; zeros where it has no label."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    logits_ptr += row * V
    most, total, of_label = float("-inf"), 0.0, 0.0
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + column, mask=column < V, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(most, tl.max(logit, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(logit - larger), 0)
        most = larger
        of_label += tl.sum(tl.where(column == label, logit, 0.0), 0)
    logsum = most + tl.log(total)
    has_label = label != NO_LABEL
    tl.store(losses_ptr + row, tl.where(has_label, logsum - of_label, 0.0))
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + column, mask=column < V, other=float("-inf")).to(tl.float32)
        grad = tl.exp(logit - logsum) - tl.where(column == label, 1.0, 0.0)
        tl.store(logits_ptr + column, tl.where(has_label, grad, 0.0).to(logits_ptr.dtype.element_ty), mask=column < V)
