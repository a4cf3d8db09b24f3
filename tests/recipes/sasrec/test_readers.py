import numpy as np
import pytest

from paceline.errors import DataError
from paceline.recipes.sasrec import readers
from paceline.recipes.sasrec.readers import read_interactions

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def write(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def events(data):
    """{user: [items]} in the source's own words."""
    return {
        data.user_names[user].decode(): [
            data.item_names[item - 1].decode() for item in data.items[data.offsets[user] : data.offsets[user + 1]]
        ]
        for user in range(data.num_users)
    }


def refuse(path, line, match, format="auto"):
    with pytest.raises(DataError, match=match) as error:
        read_interactions(path, format)
    assert error.value.exit_code == 2
    assert error.value.problems[0].where == f"{path}:{line}"
    assert error.value.problems[0].do
    return error.value.problems[0].what


def test_text_without_times_keeps_the_order_of_interleaved_users(tmp_path):
    data = read_interactions(write(tmp_path, "b 2\na 10\n\nb 1\r\n  a\t2  \nb 2"))
    assert events(data) == {"a": ["10", "2"], "b": ["2", "1", "2"]}
    assert data.times is None


def test_text_with_times_is_sorted_stably(tmp_path):
    data = read_interactions(write(tmp_path, "1 c 20\n1 b 10\n2 z 5\n1 a 20\n1 d 10\n"))
    assert events(data) == {"1": ["b", "d", "c", "a"], "2": ["z"]}
    assert data.times.tolist() == [10, 10, 20, 20, 5]


def test_numbers_are_in_their_own_order_whatever_the_lines_order(tmp_path):
    lines = [f"{user} {item} {item}" for user in (2, 10, 1) for item in (100, 9, 23)]
    first = read_interactions(write(tmp_path, "\n".join(lines)))
    second = read_interactions(write(tmp_path, "\n".join(reversed(lines))))
    assert first.user_names.tolist() == [b"1", b"2", b"10"]
    assert first.item_names.tolist() == [b"9", b"23", b"100"]
    assert np.array_equal(first.items, second.items)


def test_long_names_have_the_same_order_as_short_ones(tmp_path):
    text = "u-0000000002 é\nu-01 b\nu-0000000001 a\nu-2 été-été-été\n"
    data = read_interactions(write(tmp_path, text))
    assert data.user_names.tolist() == [b"u-2", b"u-01", b"u-0000000001", b"u-0000000002"]
    assert events(data)["u-2"] == ["été-été-été"]
    assert events(data)["u-0000000002"] == ["é"]


def test_inter_goes_by_its_header(tmp_path):
    text = "timestamp:float\titem_id:token\tlabel:float\tuser_id:token\n30\tx\t1\tA\n10.5\ty z\t1\tA\n5\tx\t0\tB\n"
    data = read_interactions(write(tmp_path, text, "a.inter"))
    assert events(data) == {"A": ["y z", "x"], "B": ["x"]}
    assert data.times.tolist() == [10.5, 30, 5]


def test_inter_without_time_keeps_file_order(tmp_path):
    data = read_interactions(write(tmp_path, "user_id:token\titem_id:token\n1\t3\n1\t2\n", "a.inter"))
    assert events(data) == {"1": ["3", "2"]}
    assert data.times is None


def test_movielens_dat(tmp_path):
    data = read_interactions(
        write(tmp_path, "1::1193::5::978300760\n1::661::3::978302109\n1::914::3::978300760\n", "ratings.dat")
    )
    assert events(data) == {"1": ["1193", "914", "661"]}


def test_movielens_csv(tmp_path):
    text = b"\xef\xbb\xbfuserId,movieId,rating,timestamp\r\n1,31,2.5,1260759144\r\n1,1029,3.0,1260759179\r\n1,7,1,1260759100\r\n"
    data = read_interactions(write(tmp_path, text, "ratings.csv"))
    assert events(data) == {"1": ["7", "31", "1029"]}


def test_u_data(tmp_path):
    data = read_interactions(write(tmp_path, "1\t242\t3\t881250949\n1\t302\t3\t881250900\n", "u.data"))
    assert events(data) == {"1": ["302", "242"]}


def test_blanks_around_fields_are_not_part_of_a_name(tmp_path):
    text = "userId,movieId,rating,timestamp\n1, 31 ,2.5, 12\n 1,  7 a,1, 11 \n1 ,31,1,13\n"
    data = read_interactions(write(tmp_path, text, "ratings.csv"))
    assert events(data) == {"1": ["7 a", "31", "31"]}
    data = read_interactions(write(tmp_path, INTER + " A\tx \t1\t1\nA\tx\t1\t2\n", "a.inter"))
    assert events(data) == {"A": ["x", "x"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a 1 1\na 2 2\n"),
        ("a.txt", "\ufeff\n\na\t1\t1\n\na\t2\t2"),
        ("a.txt", "\ufeffa\t 1 \t1\r\na 2  2\r\n\r\n"),
        ("a.txt", "a 2 2\na 1 1\n"),
        ("a.txt", "a 2 2e0\na 1 +1.0\n"),
        ("a.inter", "\ufeff" + INTER.replace("\n", "\r\n") + "a\t2\t1\t2\r\na\t1\t1\t1\r\n"),
        ("a.inter", "\n\r\n" + INTER + "\na\t2\t1\t2\na\t1\t1\t1"),
    ],
)
def test_bom_line_ends_blanks_and_order_do_not_matter(tmp_path, name, text):
    data = read_interactions(write(tmp_path, text, name))
    assert events(data) == {"a": ["1", "2"]}
    assert data.times.tolist() == [1, 2]


def test_the_same_event_twice_is_two_events(tmp_path):
    assert events(read_interactions(write(tmp_path, "1 a 5\n1 a 5\n1 b 5\n"))) == {"1": ["a", "a", "b"]}


def test_names_are_words_not_numbers(tmp_path):
    data = read_interactions(write(tmp_path, "01 x\n1 1.0\n1.0 x\nB07-é x\n"))
    assert sorted(events(data)) == ["01", "1", "1.0", "B07-é"]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_nothing(tmp_path, monkeypatch, chunk):
    path = write(
        tmp_path, INTER + "".join(f"u{n % 7}\titem-number-{n % 5}\t1\t{1000 - n // 3}\n" for n in range(100)), "a.inter"
    )
    whole = read_interactions(path)
    monkeypatch.setattr(readers, "_CHUNK_BYTES", chunk)
    cut = read_interactions(path)
    assert events(cut) == events(whole)
    assert np.array_equal(cut.times, whole.times)
    refuse(write(tmp_path, INTER + "1\t2\t3\t4\n" * 50 + "1\t2\n", "bad.inter"), 52, "2 fields")


@pytest.mark.parametrize(
    ("text", "line", "match"),
    [
        ("1 2\n1\n", 2, "1 fields where 2"),
        ("1 2\n\n\n1 2 3\n", 4, "3 fields where 2"),
        ("1 2 3\n1 2\n1 2 3 4\n", 2, "2 fields where 3"),
        ("1 2 3 4\n", 1, "4 fields where 3"),
        ("alone\n1 2\n", 1, "1 fields where 2"),
        ("1 2 3\n1 2 x\n", 2, "not a number"),
        ("1 2 3\n1 2 nan\n", 2, "not a time"),
        ("1 2 3\n1 3 4\n1 2 inf\n", 3, "not a time"),
        ("1 2 3\n1 2 -1\n", 2, "not a time"),
        ("1 2 3\n1 2 9223372036854775808\n", 2, "not a time"),
        ("1 2 3\n1 2 1e300\n", 2, "not a time"),
        ("1 2 3\n 2 3\n", 2, "2 fields where 3"),
        ("\n\nuser_id item_id\n1 2\n", 3, "looks like a header"),
        ("User Item timestamp\n1 2 3\n", 1, "looks like a header"),
        ("1 2\r1 3\r1 4\r", 1, "6 fields where 3"),
        ("1 2\n1 \0\n", 2, "not UTF-8"),
        (b"1 2\n1 3\n\xff\xfe 2\n", 3, "not UTF-8"),
        ("1 2\n1 " + "x" * 300 + "\n", 2, "longer than 256"),
    ],
)
def test_malformed_text_is_named_with_its_line(tmp_path, text, line, match):
    refuse(write(tmp_path, text), line, match)


def test_the_line_is_shown_and_cut(tmp_path):
    what = refuse(write(tmp_path, "1 2\n1 3 " + "why " * 100 + "\n"), 2, "1 3 why")
    assert what.endswith("…'")
    assert len(what) < 200


@pytest.mark.parametrize(
    ("name", "text", "line", "match"),
    [
        ("a.inter", INTER + "1\t2\t3\n", 2, "3 fields where 4"),
        ("a.inter", INTER + "1\t2\t3\t4\n\n1\t\t3\t4\n", 4, "item is empty"),
        ("a.inter", INTER + "1\t2\t3\t\n", 2, "timestamp is empty"),
        ("a.inter", INTER + "1\t2\t3\tsoon\n", 2, "not a number"),
        ("a.inter", "user_id:token\tmovie_id:token\n1\t2\n", 1, "lacks the column item_id:token"),
        ("a.inter", "1\t2\n", 1, "lacks the column user_id:token and item_id:token"),
        ("a.inter", "\nuser_id:token\titem_id:token\ttimestamp:token\n1\t2\t3\n", 2, "has a column timestamp:token"),
        ("a.inter", "user_id:token\titem_id:token\titem_id:token\n1\t2\t3\n", 1, "names a column twice"),
        ("a.inter", INTER + "1\t2\t3\t4\n  \t2\t3\t4\n", 3, "user is empty"),
        ("a.inter", INTER + "1\t2\t3\tinf\n", 2, "not a time"),
        ("a.inter", INTER + "1\t2\t3\t-0.5\n", 2, "not a time"),
        ("a.inter", INTER + "1 2 3 4\n", 2, "1 fields where 4"),
        ("u.data", "1\t2\t3\t4\n1\t2\t3\n", 2, "3 fields where 4"),
        ("u.data", "1\t2\t3\t4\n1\t2\t3\t\n", 2, "timestamp is empty"),
        ("ratings.dat", "1::2::3::4\n1::2::3\n", 2, "3 fields where 4"),
        ("ratings.dat", "1::2::3::4\n::2::3::4\n", 2, "user is empty"),
        ("ratings.csv", "userId,rating,timestamp\n1,2,3\n", 1, "lacks the column movieId"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,3,4\n1,2,3,4,5\n", 3, "5 fields where 4"),
    ],
)
def test_malformed_tables_are_named_with_their_line(tmp_path, name, text, line, match):
    refuse(write(tmp_path, text, name), line, match)


@pytest.mark.parametrize(("name", "text"), [("a.txt", "\n \n"), ("a.inter", INTER), ("a.inter", INTER.strip())])
def test_no_interactions_are_an_error(tmp_path, name, text):
    with pytest.raises(DataError, match="no interactions"):
        read_interactions(write(tmp_path, text, name))


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "users", "items", "num_events", "timed"),
    [
        ("ml-1m.txt", 6040, 3416, 999_611, False),
        ("ml-100k.inter", 943, 1682, 100_000, True),
        ("beauty.inter", 22_363, 12_101, 198_502, True),
    ],
)
def test_real_files(real_data, name, users, items, num_events, timed):
    data = read_interactions(str(real_data / name))
    assert (data.num_users, data.num_items, data.num_events, data.times is not None) == (
        users,
        items,
        num_events,
        timed,
    )


@pytest.mark.shared_data
def test_real_ties_keep_file_order(real_data):
    path = real_data / "ml-100k.inter"
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    expected = {}
    for user, item, _, _time in sorted(rows, key=lambda row: float(row[3])):
        expected.setdefault(user, []).append(item)
    assert events(read_interactions(str(path))) == expected


def test_one_long_name_among_many_short_ones(tmp_path, monkeypatch):
    """Names are cut out some at a time, whatever the longest makes of their width."""
    monkeypatch.setattr(readers, "_MOST_PLACES", 1000)
    path, long = tmp_path / "data.txt", "x" * 250
    path.write_text("".join(f"{user} {item}\n" for user in ("a", long, "b") for item in range(30)))
    interactions = readers.read_interactions(path, "text")
    assert sorted(interactions.user_names.tolist()) == [b"a", b"b", long.encode()]
    assert interactions.num_events == 90
