"""Text that a trained model writes after a prompt: a prefill, then token by token through the caches.

write_text(model, tokenizer, 2048, "Once upon", tokens=100, temperature=0.8, top=40, seed=0)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.recipes.nsa.data.tokenizer import Tokenizer
from paceline.recipes.nsa.decoder import Decoder
from paceline.recipes.nsa.model import LanguageModel
from paceline.workload import Sampled

COLDEST = 1e-9
"""above 0: what is divided by less may leave the range of numbers, and draws nothing else than the likeliest anyway"""


def write_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    length: int,
    prompt: str,
    tokens: int,
    temperature: float,
    top: int | None,
    seed: int,
) -> Sampled:
    """`length`: tokens that the model saw at once in training. Ends early where the model ends its document."""
    _check(prompt, temperature)
    ids = list(tokenizer.encode([prompt])[0])
    if not ids:
        raise UsageError("the prompt is empty", "--prompt", "give text to go on from")
    device = model.token_embedding.weight.device
    random = torch.Generator().manual_seed(seed)
    decoder, written = Decoder(model), list[int]()
    logits_1V = decoder.prefill(torch.tensor([ids], device=device))
    # What the compression read of the prompt is not decoding.
    before = decoder.bytes_read
    num_steps = 0
    while len(written) < tokens:
        token = draw_token(logits_1V[0].cpu(), temperature, top, random)
        if token == tokenizer.identity.end:
            break
        written.append(token)
        if len(written) < tokens:
            logits_1V = decoder.step(torch.tensor([token], device=device))
            num_steps += 1
    total = len(ids) + len(written)
    note = f"{total:,} tokens, more than the {length:,} that the model saw at once" if total > length else ""
    per_token = (decoder.bytes_read - before) / max(1, num_steps)
    return Sampled(prompt, tokenizer.decode(written), len(ids), len(written), per_token, note)


def _check(prompt: str, temperature: float) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        what = f"the prompt is not UTF-8 text (character {error.start + 1} of it)"
        raise UsageError(what, "--prompt", "give it as UTF-8: the shell passed bytes that are none") from None
    if temperature != 0 and not COLDEST <= temperature < math.inf:
        what = f"nothing can be drawn with temperature {temperature:g}"
        do = f"give a number from {COLDEST:g} on, such as 0.8, or 0 for the likeliest token"
        raise UsageError(what, "--temperature", do)


def draw_token(logits_V: Tensor, temperature: float, top: int | None, random: torch.Generator) -> int:
    """On the host, so that a seed means the same everywhere; of the `top` likeliest tokens, all where it is None."""
    if temperature == 0:
        return int(logits_V.argmax())
    scaled_V = logits_V.double() / temperature
    if top is not None and top < len(scaled_V):
        likeliest = scaled_V.topk(top)
        chosen = torch.multinomial(likeliest.values.softmax(0), 1, generator=random)
        return int(likeliest.indices[chosen])
    return int(torch.multinomial(scaled_V.softmax(0), 1, generator=random))
