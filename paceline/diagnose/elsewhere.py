"""What keys of our configuration are called in a loop or a script that is not ours: there nobody has them.

without_keys("a smaller train.micro_batch, or data.num_workers=0")   -> "a smaller batch per rank, or num_workers=0"
"""

from __future__ import annotations

import re

KEY = re.compile(
    r"\b(?:launch|data|train|parallel|precision|attention|evaluate|checkpoint|supervise|profile|telemetry|stop|model)\.[a-z_]"
)
_WORDS = (
    # Commands that need a configuration.
    (r"; paceline (?:bench loader CONFIG|triage RUN)[^;]*", ""),
    (r" \(--nproc, --gpus\)", " (--nproc-per-node)"),
    (r"another --out\b", "another place"),
    # Whole phrases before the keys in them.
    (r" \((?:telemetry\.ledger=true|launch\.env\.\w+)\)", ""),
    (r"data\.num_workers or data\.prefetch", "num_workers or prefetch_factor of its loader"),
    (r"train\.global_batch or train\.accumulate", "batch or more accumulation"),
    (r"a lower train\.optimizer\.lr", "a lower learning rate"),
    (r"set train\.clip_norm=", "clip gradients at "),
    (r"a smaller checkpoint\.keep", "fewer checkpoints"),
    (r"take parallel\.backend=", "take "),
    (r"train\.compile\.enabled=false", "no torch.compile"),
    # Keys.
    (r"launch\.env\.([A-Z0-9_]+=[\w:]+)", r"\1 in the environment"),
    (r"data\.num_workers", "num_workers"),
    (r"train\.optimizer\.lr", "the learning rate"),
    (r"train\.schedule\.warmup_steps", "its warm-up"),
    (r"train\.micro_batch", "batch per rank"),
    (r"train\.activation_checkpointing", "activation checkpointing"),
    (r"train\.compile\.enabled=true", "torch.compile"),
    (r"train\.graph=true", "CUDA graphs"),
    (r"precision\.mode=fp32", "train in float32"),
    (r"attention\.impl", "attention kernel"),
    (r"parallel\.timeout_s", "the timeout of init_process_group"),
    (r"parallel\.static_graph=true", "static_graph=True"),
    (r"parallel\.find_unused=true", "find_unused_parameters=True"),
    (r"parallel\.zero_stage", "sharding"),
    (r"parallel\.compression=", "gradients in "),
    (r"parallel\.bucket_mb", "bucket size"),
)


def without_keys(do: str) -> str:
    """The same advice in words that hold anywhere."""
    for pattern, words in _WORDS:
        do = re.sub(pattern, words, do)
    return do
