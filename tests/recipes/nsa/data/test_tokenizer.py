from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import DataError, UsageError
from paceline.recipes.nsa.data.tokenizer import ByteTokenizer, Tokenizer, check_same, fingerprint_of, load_tokenizer
from tests.recipes.nsa.data.gpt2 import gpt2_files


@pytest.mark.parametrize("text", ["", "plain", "Été – 日本 🙂\n", "\0\x7f", "a" * 1000])
def test_bytes_come_back_as_the_same_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    (tokens,) = tokenizer.encode([text])
    assert tokens.typecode == tokenizer.identity.typecode == "H"
    assert list(tokens) == list(text.encode())
    assert tokenizer.decode([*tokens, tokenizer.identity.end, tokenizer.identity.padding]) == text


def test_half_a_character_is_shown_as_one_that_is_missing() -> None:
    assert ByteTokenizer().decode(list("é".encode())[:1]) == "�"


def test_a_vocabulary_that_does_not_fit_takes_wider_numbers() -> None:
    identity = ByteTokenizer.identity
    assert [type(identity)("x", "y", n, 0, 0).typecode for n in (2, 65_536, 65_537)] == ["H", "H", "I"]


def test_another_tokenizer_is_refused_with_both_fingerprints() -> None:
    stored = type(ByteTokenizer.identity)("tokenizers", "tokenizers:abc", 99, 0, 0)
    with pytest.raises(DataError) as caught:
        check_same(ByteTokenizer.identity, stored, "data.tokenizer=bytes", "data.path=x", "")
    assert all(word in str(caught.value) for word in ("bytes:1", "tokenizers:abc", "258", "99", "data.path=x"))
    check_same(stored, stored, "", "", "")


def test_another_end_is_another_tokenizer() -> None:
    """The same file, read by a version that ends documents otherwise: the tokens would not be the same."""
    given = type(ByteTokenizer.identity)("tokenizers", "tokenizers:abc", 100, 99, 99)
    with pytest.raises(DataError, match=r"ends documents with 99.*ends documents with 4"):
        check_same(given, type(given)("tokenizers", "tokenizers:abc", 99, 4, 4), "a", "b", "")


def test_the_fingerprint_is_of_what_it_does() -> None:
    content: dict[str, Any] = {"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "padding": None}
    other_order = {"padding": {"length": 3}, "model": {"merges": [], "vocab": {"b": 1, "a": 0}}}
    assert fingerprint_of(content) == fingerprint_of(other_order)
    assert fingerprint_of(content) != fingerprint_of({"model": {"vocab": {"a": 1, "b": 0}, "merges": []}})


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.json", None, "no such tokenizer"),
        ("x.json", "", "no JSON"),
        ("x.json", "[1]", "no JSON object"),
        ("x.json", '{"a": "b"}', "neither"),
        ("vocab.json", '{"a": 0}', "255 of the 256 bytes"),
    ],
)
def test_what_is_no_tokenizer_is_refused_with_its_file(
    tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        load_tokenizer(str(tmp_path / name))
    assert name in str(caught.value)


def test_an_empty_directory_and_missing_merges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (gpt2_files(tmp_path) / "merges.txt").unlink()
    with pytest.raises(DataError, match=r"no merges\.txt"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(DataError, match="not two tokens") as caught:
        load_tokenizer(str(tmp_path))
    assert "merges.txt:3" in str(caught.value)


def test_a_file_without_the_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        load_tokenizer(str(gpt2_files(tmp_path)))
    assert "pip install 'paceline[lm]'" in str(caught.value)


class TestWithTheLibrary:
    @pytest.fixture
    def gpt2(self, tmp_path: Path) -> Tokenizer:
        pytest.importorskip("tokenizers", reason="needs paceline[lm]")
        return load_tokenizer(str(gpt2_files(tmp_path)))

    def test_gpt2_files_merge_and_come_back(self, gpt2: Tokenizer) -> None:
        text = "he ate a hen –日本\n"
        (tokens,) = gpt2.encode([text])
        assert tokens[0] == 256
        assert 257 in tokens
        assert len(tokens) < len(text.encode())
        assert gpt2.decode([*tokens, gpt2.identity.end]) == text
        assert (gpt2.identity.vocabulary, gpt2.identity.end) == (259, 258)

    def test_a_document_cannot_end_itself(self, gpt2: Tokenizer) -> None:
        (tokens,) = gpt2.encode(["a<|endoftext|>b"])
        assert gpt2.identity.end not in tokens
        assert gpt2.decode(tokens) == "a<|endoftext|>b"

    def test_its_own_file_gives_the_same_tokenizer(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        content = gpt2.content()
        assert content is not None
        (tmp_path / "copy.json").write_text(content)
        copy = load_tokenizer(str(tmp_path / "copy.json"))
        assert copy.identity == gpt2.identity
        assert copy.encode(["he hen"]) == gpt2.encode(["he hen"])

    def test_one_more_token_is_another_tokenizer(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        other = load_tokenizer(str(gpt2_files(tmp_path / "other", "xyz")))
        assert other.identity.fingerprint != gpt2.identity.fingerprint

    def test_one_without_a_known_end_gets_an_id_of_its_own(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        content = json.loads(gpt2.content() or "")
        content["added_tokens"] = []
        del content["model"]["vocab"]["<|endoftext|>"]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        identity = load_tokenizer(str(tmp_path)).identity
        assert (identity.end, identity.vocabulary) == (258, 259)

    def test_an_end_that_text_can_write_is_none(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        """An added token that is not special is found in any text, whatever the library was told of special ones."""
        content = json.loads(gpt2.content() or "")
        content["added_tokens"][0]["special"] = False
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        tokenizer = load_tokenizer(str(tmp_path))
        (tokens,) = tokenizer.encode(["a<|endoftext|>b"])
        assert 258 in tokens
        assert tokenizer.identity.end not in tokens
        assert (tokenizer.identity.end, tokenizer.identity.vocabulary) == (259, 260)

    def test_the_next_name_is_taken_where_the_first_is_not_special(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        content = json.loads(gpt2.content() or "")
        end = content["added_tokens"][0]
        content["added_tokens"] = [end | {"special": False}, end | {"id": 259, "content": "</s>"}]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        assert load_tokenizer(str(tmp_path)).identity.end == 259

    @pytest.mark.parametrize("text", ["</s>", "a</s>", "a </s> b", "</s></s>"])
    def test_nor_is_one_that_the_model_makes_of_its_letters(self, gpt2: Tokenizer, tmp_path: Path, text: str) -> None:
        """Special, but a piece of the model as well: the library does not look for it, the model finds it."""
        end = json.loads(gpt2.content() or "")["added_tokens"][0] | {"id": 1, "content": "</s>"}
        pieces = [["<unk>", 0.0], ["</s>", 0.0], *([letter, -3.0] for letter in "ab </s>")]
        model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [end], "model": model}))
        tokenizer = load_tokenizer(str(tmp_path))
        assert tokenizer.identity.end not in tokenizer.encode([text])[0]

    def test_a_file_that_cuts_and_pads_does_neither_here(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        content = json.loads(gpt2.content() or "")
        content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        (tmp_path / "t.json").write_text(json.dumps(content))
        tokenizer = load_tokenizer(str(tmp_path / "t.json"))
        assert len(tokenizer.encode(["xyz xyz"])[0]) == 7
        assert tokenizer.identity == gpt2.identity

    def test_what_the_library_refuses_is_refused_with_the_file(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        (tmp_path / "t.json").write_text('{"model": {"type": "Nothing"}}')
        with pytest.raises(DataError, match="no tokenizer") as caught:
            load_tokenizer(str(tmp_path / "t.json"))
        assert "t.json" in str(caught.value)
