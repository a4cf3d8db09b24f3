"""A tokenizer from a file: the JSON of Hugging Face's `tokenizers`, or GPT-2's vocab.json and merges.txt. Needs `paceline[lm]`.

GPT-2's two files are turned into that JSON here, not by the library, so that the fingerprint does not follow the library's version.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import DataError, UsageError
from paceline.recipes.nsa.data.tokenizer import Identity, fingerprint_of

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eos|>", "<eos>", "</s>", "<|im_end|>", "[EOS]", "[SEP]")
"""what ends a document: the first of them that the file has as a special token, which no text can become"""
_DO = "give `bytes`, a tokenizer.json, or a directory with vocab.json and merges.txt"


class FileTokenizer:
    """A tokenizer of the library `tokenizers`."""

    def __init__(self, content: dict[str, Any], where: str) -> None:
        library = import_tokenizers(where)
        self._where = where
        self._text = json.dumps(content, ensure_ascii=False)
        try:
            self._tokenizer = library.Tokenizer.from_str(self._text)
        except Exception as error:  # the library raises nothing more specific
            raise DataError(f"this is no tokenizer: {error}", where, _DO) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A document that quotes a special token must not end itself.
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError("this tokenizer has no tokens", where, _DO)
        size = max(vocabulary.values()) + 1
        found = next((vocabulary[name] for name in _ENDS if name in vocabulary and self._is_beyond_text(name)), None)
        # None that will do: an id of our own, after all others.
        end, size = (size, size + 1) if found is None else (found, size)
        self.identity = Identity("tokenizers", fingerprint_of(content), size, end, padding=end)

    def encode(self, texts: Sequence[str]) -> list[array[int]]:
        return [array(self.identity.typecode, ids) for ids in self._encode(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [number for number in ids if number != self.identity.end]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return text

    def content(self) -> str:
        return self._text

    def _is_beyond_text(self, name: str) -> bool:
        """Whether no text becomes this token: other added tokens are looked for in any text, and so are pieces of some models."""
        added = self._tokenizer.get_added_tokens_decoder()
        number = next((number for number, token in added.items() if token.special and token.content == name), None)
        if number is None:
            return False
        return all(number not in ids for ids in self._encode([name, f"a{name}a", f"a {name} a"]))

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing more specific
            what = f"this tokenizer cannot encode the text: {error}"
            raise DataError(what, self._where, "give one that has a token for everything, such as `bytes`") from error
        return [one.ids for one in encoded]


def read_tokenizer_file(path: Path) -> FileTokenizer:
    """From a file, or from a directory that holds one."""
    if path.is_dir():
        path = next((path / name for name in ("tokenizer.json", "vocab.json") if (path / name).is_file()), path)
    if path.is_dir():
        raise DataError("there is no tokenizer.json, nor a vocab.json, in this directory", str(path), _DO)
    content = _read_json(path)
    is_library_file = isinstance(content.get("model"), dict)
    return FileTokenizer(content if is_library_file else _from_gpt2(content, path), str(path))


def import_tokenizers(where: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        what = "a tokenizer from a file needs the package tokenizers, which is not installed"
        raise UsageError(what, where, "pip install 'paceline[lm]', or take the tokenizer `bytes`") from None
    return tokenizers


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError("there is no such tokenizer", str(path), _DO) from None
    except OSError as error:
        raise DataError(f"the tokenizer cannot be read ({error.strerror})", str(path), _DO) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"the tokenizer's file is no JSON: {error}", str(path), _DO) from error
    if not isinstance(content, dict):
        raise DataError("the tokenizer's file holds no JSON object", str(path), _DO)
    return content


def _from_gpt2(vocabulary: dict[str, Any], path: Path) -> dict[str, Any]:
    if not vocabulary or not all(type(number) is int and number >= 0 for number in vocabulary.values()):
        what = "this JSON is neither a tokenizers file (no `model`) nor a GPT-2 vocabulary (token: number)"
        raise DataError(what, str(path), _DO)
    missing = [character for character in byte_alphabet() if character not in vocabulary]
    if missing:
        what = f"the vocabulary lacks {len(missing)} of the 256 bytes ({missing[0]!r} is one): text would be lost"
        raise DataError(what, str(path), "give GPT-2's own vocab.json, or one of the same alphabet")
    beside = path.with_name("merges.txt")
    try:
        lines = beside.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError("there is a vocabulary, but no merges.txt beside it", str(beside), _DO) from None
    except (OSError, ValueError) as error:
        raise DataError(f"the merges cannot be read ({error})", str(beside), _DO) from error
    merges = [line for line in lines if line.strip() and not line.startswith("#version")]
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#version") and len(line.split(" ")) != 2:
            raise DataError(f"not two tokens with a blank between them: {line[:80]!r}", f"{beside}:{number}", _DO)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges} | dict.fromkeys(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ends = [name for name in _ENDS[:1] if name in vocabulary]
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[name], "content": name, "special": True} | flags for name in ends],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model | {"fuse_unk": False, "byte_fallback": False},
    }


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, in the order of the bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
