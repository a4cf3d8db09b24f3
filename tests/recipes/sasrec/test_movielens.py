from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import DataError, OccupiedError, UsageError
from paceline.files import Lock
from paceline.recipes.download import Remote, Report
from paceline.recipes.sasrec import movielens, movielens_input
from paceline.recipes.sasrec.movielens import Preparation, prepare
from paceline.recipes.sasrec.readers import read_interactions
from paceline.recipes.sasrec.titles import read_titles

RATINGS = "1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978298413\n1::914::3::978300760\n"
MOVIES = (
    "1193::Été (1975)::Drama\n661::James and the Giant Peach (1996)::Animation\n914::My Fair Lady (1964)::Musical\n"
)
U_DATA = "196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t302\t1\t881250949\n"
U_ITEM = "242|Kolya (1996)|24-Jan-1997||http://x|0|1\n302|L.A. Confidential (1997)|01-Jan-1997||http://y|0|0\n"


def pack(path: Path, **members: str | bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small ml-1m.zip, whose checksum counts as the published one."""
    members = {"ml-1m/": "", "ml-1m/movies.dat": MOVIES.encode("latin-1"), "ml-1m/ratings.dat": RATINGS}
    return publish(monkeypatch, pack(tmp_path / "ml-1m.zip", **members))


def publish(monkeypatch: pytest.MonkeyPatch, path: Path, name: str = "ml-1m") -> Path:
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(movielens_input.DATASETS, name, replace(movielens_input.DATASETS[name], md5=md5))
    return path


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The addresses that were downloaded; each gives tmp_path/ml-1m.zip."""
    found: list[str] = []

    def download(remote: Remote, target: Path, report: Report) -> None:
        found.append(remote.url)
        target.write_bytes((tmp_path / "ml-1m.zip").read_bytes())

    monkeypatch.setattr(movielens, "download", download)
    return found


def run(given: Path | None, out: Path, name: str | None = None, url: str | None = None) -> Preparation:
    return prepare(name, given, out, url, lambda here, total: None)


def test_an_archive_becomes_interactions_and_titles(tmp_path: Path, archive: Path) -> None:
    done = run(archive, tmp_path / "out")
    assert (done.is_new, done.notes) == (True, [])
    assert done.interactions == tmp_path / "out" / "ml-1m.inter"
    assert done.interactions.read_text().splitlines() == [
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        "1\t1193\t5\t978300760",
        "1\t661\t3\t978302109",
        "2\t1193\t4\t978298413",
        "1\t914\t3\t978300760",
    ]
    assert (tmp_path / "out" / "ml-1m.item").read_text(encoding="utf-8").splitlines()[:2] == [
        "item_id:token\ttitle:token_seq",
        "1193\tÉté (1975)",
    ]
    record = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert (record["v"], record["family"], record["name"], record["version"]) == (1, "movielens", "ml-1m", 1)
    assert record["source"] == {"from": str(archive), "md5": hashlib.md5(archive.read_bytes()).hexdigest()}
    counts = {"users": 2, "items": 3, "events": 4, "first_s": 978298413, "last_s": 978302109, "titles": 3}
    assert record["counts"] == counts
    inter = done.interactions.read_bytes()
    assert record["files"]["ml-1m.inter"] == {"bytes": len(inter), "sha256": hashlib.sha256(inter).hexdigest()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")) == [
        "ml-1m.inter",
        "ml-1m.item",
        "prepared.json",
    ]


def test_the_reader_finds_the_same_as_in_the_original(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "ratings.dat").write_text(RATINGS)
    original = read_interactions(str(tmp_path / "ratings.dat"))
    done = read_interactions(str(run(archive, tmp_path / "out").interactions))
    for name in ("offsets", "items", "times", "user_names", "item_names"):
        assert getattr(original, name).tolist() == getattr(done, name).tolist()
    assert read_titles(tmp_path / "out" / "ml-1m.inter")["914"] == "My Fair Lady (1964)"


def test_again_there_is_nothing_to_do(tmp_path: Path, archive: Path) -> None:
    run(archive, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    for given in (archive, None):
        again = run(given, tmp_path / "out", "ml-1m")
        assert (again.is_new, again.notes) == (False, [])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_the_network_is_asked_once(tmp_path: Path, archive: Path, fetched: list[str]) -> None:
    out = tmp_path / "out"
    assert run(None, out).is_new
    assert not run(None, out).is_new
    (out / "ml-1m.inter").write_text("damaged")
    assert run(None, out).is_new, "from the archive that was kept"
    assert fetched == ["https://files.grouplens.org/datasets/movielens/ml-1m.zip"]
    (out / "ml-1m.zip").write_bytes(b"damaged")
    (out / "ml-1m.inter").write_text("damaged")
    assert run(None, out, url="https://mirror.example/ml-1m.zip").is_new
    assert fetched[1:] == ["https://mirror.example/ml-1m.zip"]


@pytest.mark.parametrize("damage", ["change", "remove", "version"])
def test_what_was_damaged_is_made_again_and_said(
    tmp_path: Path, archive: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(archive, tmp_path / "out").interactions
    content = whole.read_bytes()
    if damage == "change":
        whole.write_bytes(content.replace(b"978300760", b"978300761", 1))
    elif damage == "remove":
        whole.unlink()
    else:
        monkeypatch.setattr(movielens, "VERSION", 2)
    again = run(archive, tmp_path / "out")
    assert again.is_new
    (note,) = again.notes
    assert note.startswith("made again: ")
    assert {"change": "not as it was written", "remove": "missing", "version": "version 1"}[damage] in note
    assert whole.read_bytes() == content
    assert not run(archive, tmp_path / "out").is_new


def test_killed_before_the_record(tmp_path: Path, archive: Path) -> None:
    run(archive, tmp_path / "out")
    (tmp_path / "out" / "prepared.json").unlink()
    (tmp_path / "out" / "ml-1m.item").unlink()
    (tmp_path / "out" / ".ml-1m.item.part").write_text("half")
    assert run(archive, tmp_path / "out").is_new
    assert not run(archive, tmp_path / "out").is_new
    assert not (tmp_path / "out" / ".ml-1m.item.part").exists()


def test_somebody_elses_file_is_never_replaced(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ml-1m.item").write_text("precious")
    with pytest.raises(OccupiedError, match="not prepared here") as caught:
        run(archive, tmp_path / "out")
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].where.endswith("ml-1m.item")
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".lock"] == ["ml-1m.item"]
    assert (tmp_path / "out" / "ml-1m.item").read_text() == "precious"


def test_other_parameters_into_the_same_directory_are_refused(tmp_path: Path, archive: Path) -> None:
    run(archive, tmp_path / "out")
    (tmp_path / "u.data").write_text(U_DATA)
    with pytest.raises(OccupiedError, match="holds movielens ml-1m, and movielens ml-100k was asked for"):
        run(tmp_path / "u.data", tmp_path / "out")
    (tmp_path / "ratings.dat").write_text(RATINGS + "9::1::1::1000000000\n")
    (tmp_path / "movies.dat").write_bytes(MOVIES.encode("latin-1"))
    with pytest.raises(OccupiedError, match=r"other data: ratings.dat of .* is not that of .*ml-1m.zip"):
        run(tmp_path / "ratings.dat", tmp_path / "out")
    (tmp_path / "ratings.dat").write_text(RATINGS)
    assert not run(tmp_path / "ratings.dat", tmp_path / "out").is_new, "the same, unpacked"


def test_two_at_once(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "out").mkdir()
    lock = Lock(tmp_path / "out" / ".prepare.lock")
    assert lock.acquire()
    with pytest.raises(OccupiedError, match="being prepared"):
        run(archive, tmp_path / "out")
    lock.release()


def test_a_wrong_archive_names_both_checksums(tmp_path: Path, archive: Path) -> None:
    other = pack(tmp_path / "other.zip", **{"ml-1m/ratings.dat": RATINGS})
    for name in ("ml-1m", None):
        with pytest.raises(DataError, match="not the published one") as caught:
            run(other, tmp_path / "out", name)
        for path in (other, archive):
            assert hashlib.md5(path.read_bytes()).hexdigest() in caught.value.problems[0].what
    assert not (tmp_path / "out").exists()


def test_the_published_checksums() -> None:
    md5 = {name: dataset.md5 for name, dataset in movielens_input.DATASETS.items()}
    assert md5 == {"ml-1m": "c4d9eecfca2ab87c1945afe126590906", "ml-100k": "0e33842e24a9c977be4e0107933c0723"}


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"ml-1m/ratings.dat": RATINGS, "../../.bashrc": "x"}, "leads out of it"),
        ({"ml-1m/ratings.dat": RATINGS, "/etc/x": "x"}, "leads out of it"),
        ({"ml-1m/ratings.dat": RATINGS, "a\\..\\x": "x"}, "leads out of it"),
        ({"ml-1m/movies.dat": MOVIES}, "no item named 'ml-1m/ratings.dat'"),
        ({"ml-1m/ratings.dat": "1::2::3::4\n" * 20, "ml-1m/movies.dat": MOVIES}, "more than 200 bytes"),
    ],
)
def test_an_archive_that_is_not_what_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, str], match: str
) -> None:
    monkeypatch.setattr(movielens_input, "_LIMIT_BYTES", 200)
    bad = publish(monkeypatch, pack(tmp_path / "bad.zip", **members))
    with pytest.raises(DataError, match=match):
        run(bad, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip"]


def test_a_damaged_member(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(archive.read_bytes())
    at = content.index(b"ml-1m/ratings.dat") + len(b"ml-1m/ratings.dat") + 10
    content[at] ^= 0xFF
    archive.write_bytes(content)
    publish(monkeypatch, archive)
    with pytest.raises(DataError, match="cannot be read"):
        run(archive, tmp_path / "out")


def test_unpacked_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "ml-100k"
    folder.mkdir()
    (folder / "u.data").write_text(U_DATA)
    (folder / "u.item").write_text(U_ITEM)
    for number, given in enumerate((folder, tmp_path, folder / "u.data")):
        done = run(given, tmp_path / f"out-{number}")
        assert done.prepared.name == "ml-100k"
        assert done.notes == ["not the whole ml-100k: 3 ratings, published 100,000"]
        assert read_titles(done.interactions) == {"242": "Kolya (1996)", "302": "L.A. Confidential (1997)"}
    (folder / "u.item").unlink()
    assert "no titles: there is no u.item beside the ratings" in run(folder, tmp_path / "out-3").notes
    with pytest.raises(DataError, match="as in ml-100k") as caught:
        run(folder / "u.data", tmp_path / "out-4", "ml-1m")
    assert "prepare movielens ml-100k" in caught.value.problems[0].do
    with pytest.raises(DataError, match=r"has no ratings\.dat"):
        run(folder, tmp_path / "out-4", "ml-1m")


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.txt", "1 1\n1 2\n", "have no timestamps, and none are invented"),
        ("a.txt", "1\t1\t5\n", "have no timestamps"),
        ("ratings.dat", "1::2::3\n", "have no timestamps"),
        ("a.inter", "user_id:token\titem_id:token\n1\t2\n", "needs no preparation"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,3,4\n", "needs no preparation"),
        ("a.txt", "some words that are no ratings\n", "no file of ratings"),
        ("ratings.dat", "1::2::3::77\n1::3::3::77\n", "all ratings have the same timestamp"),
        ("ratings.dat", "1::2::3::4\n\n::2::3::4\n", "not user, item, rating and timestamp"),
        ("ratings.dat", "1::2::3::4\n\n1::2::3\n", "not user, item, rating and timestamp"),
        ("ratings.dat", "1::2::3::4\n\n1::2::3::nan\n", "no time in seconds"),
        ("ratings.dat", "1::2::3::4\n\n1::2::3::-5\n", "no time in seconds"),
        ("ratings.dat", "1::2::3::4\n\n1::2::3::978300760000\n", "no time in seconds"),
        ("ratings.dat", "1::2::3::4\n\n1::2::good::5\n", "rating is no number"),
        ("ratings.dat", b"1::2::3::4\n\n1::\xff::3::5\n", "not UTF-8"),
    ],
)
def test_a_local_file_that_cannot_be_used(tmp_path: Path, name: str, text: str | bytes, match: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=match) as caught:
        run(path, tmp_path / "out")
    problem = caught.value.problems[0]
    line = 3 if b"\n\n" in path.read_bytes() else 1
    assert problem.where in (f"{path}:{line}", str(path))
    assert problem.do
    assert not (tmp_path / "out" / "prepared.json").exists()


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        run(tmp_path / "nowhere.zip", tmp_path / "out")


@pytest.mark.shared_data
def test_the_real_ml_100k(tmp_path: Path, real_data: Path) -> None:
    """The shared copy is RecBole's: without its header it is u.data."""
    rows = (real_data / "ml-100k.inter").read_text().split("\n", 1)[1]
    (tmp_path / "u.data").write_text(rows)
    done = run(tmp_path / "u.data", tmp_path / "out")
    assert done.interactions.read_bytes() == (real_data / "ml-100k.inter").read_bytes()
    assert (done.prepared.counts["users"], done.prepared.counts["items"]) == (943, 1682)
    assert "taken as it is: only the archive has a published checksum" in done.notes
