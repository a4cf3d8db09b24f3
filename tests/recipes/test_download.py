from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.errors import DataError, UsageError
from paceline.recipes import download as module
from paceline.recipes.download import Remote, download, part_of

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()
Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server on this machine that answers as a test says; `ranges` are those that it was asked for."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/ml-1m.zip"
        self.ranges: list[str | None] = []
        self.answer: Answer = send_range


def send(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, announced: int | None = None, **more: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if announced is None else announced))
    for name, value in more.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


def send_whole(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, CONTENT)


def send_range(handler: BaseHTTPRequestHandler) -> None:
    asked = handler.headers.get("Range")
    if asked is None:
        send_whole(handler)
        return
    begin = int(asked.removeprefix("bytes=").removesuffix("-"))
    if begin >= len(CONTENT):
        send(handler, 416, b"", Content_Range=f"bytes */{len(CONTENT)}")
        return
    send(handler, 206, CONTENT[begin:], Content_Range=f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}")


def send_half(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, CONTENT[:300_000], announced=len(CONTENT))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.ranges.append(self.headers.get("Range"))
            found.answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        found = Server(listening.server_port)
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield found
        listening.shutdown()
        thread.join()


def fetch(server: Server, target: Path, md5: str = MD5, limit: int = 2**30) -> list[tuple[int, int | None]]:
    seen: list[tuple[int, int | None]] = []
    download(Remote(server.url, md5, limit, "do it by hand"), target, lambda here, total: seen.append((here, total)))
    return seen


def test_a_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    seen = fetch(server, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_what_broke_off_goes_on(server: Server, tmp_path: Path) -> None:
    server.answer = send_half
    with pytest.raises(UsageError, match="ended after 300,000 of 1,024,000") as caught:
        fetch(server, tmp_path / "a.zip")
    assert "do it by hand" in caught.value.problems[0].do
    assert part_of(tmp_path / "a.zip").stat().st_size == 300_000
    assert not (tmp_path / "a.zip").exists()
    server.answer = send_range
    seen = fetch(server, tmp_path / "a.zip")
    assert server.ranges == [None, "bytes=300000-"]
    assert seen[0][0] > 300_000
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path / "a.zip").write_bytes(CONTENT[:5000])
    server.answer = send_whole
    fetch(server, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert server.ranges == ["bytes=5000-"]


@pytest.mark.parametrize("part", [CONTENT + b"more", CONTENT, b"another file"])
def test_a_part_that_does_not_fit_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    part_of(tmp_path / "a.zip").write_bytes(part)
    fetch(server, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(part)}-", None]


def test_a_range_that_was_not_asked_for(server: Server, tmp_path: Path) -> None:
    def send_other_range(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("Range") is None:
            send_whole(handler)
        else:
            send(handler, 206, CONTENT[7:], Content_Range=f"bytes 7-{len(CONTENT) - 1}/{len(CONTENT)}")

    part_of(tmp_path / "a.zip").write_bytes(CONTENT[:5000])
    server.answer = send_other_range
    fetch(server, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_wrong_checksum_names_both_and_keeps_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(server, tmp_path / "a.zip", md5="0" * 32)
    assert MD5 in caught.value.problems[0].what
    assert "0" * 32 in caught.value.problems[0].what
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_can_be_is_not_stored(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        fetch(server, tmp_path / "a.zip", limit=1000)
    assert list(tmp_path.iterdir()) == []


def test_what_a_server_refuses(server: Server, tmp_path: Path) -> None:
    server.answer = lambda handler: handler.send_error(404)
    with pytest.raises(UsageError, match="answers 404 Not Found") as caught:
        fetch(server, tmp_path / "a.zip")
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].where == server.url


def test_a_server_that_falls_silent(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    ended = threading.Event()

    def send_nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        ended.wait(30)

    server.answer = send_nothing
    try:
        with pytest.raises(UsageError, match="nothing came for"):
            fetch(server, tmp_path / "a.zip")
    finally:
        ended.set()


@pytest.mark.parametrize("url", ["file:/etc/hosts", "ftp://a/b", "ml-1m.zip", "https://"])
def test_what_is_no_address(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        download(Remote(url, MD5, 1, ""), tmp_path / "a.zip", lambda here, total: None)


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(UsageError, match="the download failed: Connection refused") as caught:
        download(Remote("http://127.0.0.1:1/a.zip", MD5, 1, "by hand"), tmp_path / "a.zip", lambda here, total: None)
    assert "by hand" in caught.value.problems[0].do
