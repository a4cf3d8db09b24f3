"""Encoders and tokenizers that others trained, in the format of `transformers`: found in a directory, in its cache, or on the Hub.

    read_config("models/wav2vec2-base", "speech", ("wav2vec2",))

Every failure says which key asked for it and, where there is no network, what to download and where to put it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

from paceline.errors import ConfigError, UsageError

Loaded = TypeVar("Loaded")

_HUB_TIMEOUT_S = 10


def check_transformers() -> None:
    """UsageError where the package is not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        what = f"the encoders are built with the package transformers, and it cannot be imported ({error})"
        raise UsageError(what, "this Python's packages", "pip install 'paceline[speech]'") from None


def read_config(name: str, key: str, kinds: Sequence[str]) -> Any:
    """What config.json says; ConfigError where it is none of these kinds of model."""
    from transformers import AutoConfig

    config = load_stored(AutoConfig.from_pretrained, name, key)
    if config.model_type not in kinds:
        what = f"model.{key}={name} is a {config.model_type} model, and this encoder is built from {' or '.join(kinds)}"
        raise ConfigError(what, f"model.{key}", "give a model of that kind, or model." + key + "=small")
    return config


def load_stored(load: Callable[..., Loaded], name: str, key: str, **options: Any) -> Loaded:
    """What `load` makes of a directory or a name: the cache is asked first, then the network."""
    from safetensors import SafetensorError

    directory = Path(name).expanduser()
    is_here = directory.is_dir()
    with _quietly():
        try:
            try:
                return load(str(directory) if is_here else name, local_files_only=True, **options)
            except OSError:
                if is_here:
                    raise
                _ask_hub(name)
                return load(name, **options)
        except (OSError, ValueError) as error:
            if is_here:
                what = f"the directory holds no model that can be read: {_first_line(error)}"
                do = "put config.json, model.safetensors and, for text, the tokenizer's files there"
                raise ConfigError(what, f"model.{key}={name}", do) from error
            what = f"there is no directory {name}, and no model of that name in the cache or on the Hub: {_first_line(error)}"
            do = (
                f"where there is a network: hf download {name} --local-dir models/{directory.name}; copy that directory here, "
                f"and set model.{key}=models/{directory.name}; or set model.{key}=small"
            )
            raise ConfigError(what, f"model.{key}={name}", do) from error
        # What `transformers` raises for weights of other sizes than config.json says, and for files of weights that are damaged.
        except (RuntimeError, SafetensorError, UnpicklingError, EOFError) as error:
            fault = "do not fit their configuration" if isinstance(error, RuntimeError) else "are damaged"
            what = f"the weights {fault}: {_first_line(error)}"
            raise ConfigError(what, f"model.{key}={name}", "copy the model again, all its files") from error


def _ask_hub(name: str) -> None:
    """Whether the Hub answers, asked once: `transformers` would try again for half a minute where there is no network; OSError."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_HUB_TIMEOUT_S)
    except (OSError, ValueError):
        raise
    except Exception as error:  # of its HTTP client, which is another one in other versions
        raise OSError(f"the Hub cannot be reached: {error}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and no remarks on weights of heads that nobody asked for."""
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
