"""A file of hosts, and every way to mistype one."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigError, UsageError
from paceline.launch.hosts.hostfile import HostLine, read_hostfile


def test_hosts_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    # As an editor of another system leaves it: marked, and with two characters at the end of a line.
    path.write_bytes(b"\xef\xbb\xbf# ours\r\nnode-a slots=8   # leads\r\n\r\n\tanna@10.0.0.2\r\n2001:db8::1\tslots=1\n")
    found = read_hostfile(path)
    assert found == [HostLine("node-a", 8, 2), HostLine("anna@10.0.0.2", None, 4), HostLine("2001:db8::1", 1, 5)]
    assert [each.name for each in found] == ["node-a", "10.0.0.2", "2001:db8::1"]


@pytest.mark.parametrize(
    ("line", "what", "do"),
    [
        ("node-a slot=4", "knows no 'slot'", "node-a slots=4"),
        ("node-a nproc=4", "knows no 'nproc'", "node-a slots=4"),
        ("node-a colour=red", "knows no 'colour'", "node-a slots=8 is all"),
        ("node-a slots=four", "slots=four is not a number", "node-a slots=8"),
        ("node-a slots=0", "slots=0 is not a number", "node-a slots=8"),
        (f"node-a slots={'9' * 5000}", "is not a number of ranks (1 to 1024)", "node-a slots=8"),
        ("[::1]", "'[::1]' is not a host", "::1, an address without brackets"),
        ("anna@2001:db8::1%eth0", "is not a host", "anna@2001:db8::1, an address without brackets"),
        ("anna@fe80::1%eth0", "fe80::1%eth0 is an address of one link", "one that all hosts reach"),
        ("fe80::1", "fe80::1 is an address of one link", "one that all hosts reach"),
        ("node-a slots=", "slots= is not a number", "node-a slots=8"),
        ("node-a slots = 4", "spaces around =", "node-a slots=4"),
        ("node-a slots= 4", "spaces around =", "node-a slots=4"),
        ("node-a 4", "'4' is not understood", "node-a slots=4"),
        ("node-a:4", "'node-a:4' is not a host", "node-a slots=4"),
        ("cafe:4", "'cafe:4' is not a host", "cafe slots=4"),
        (":", "':' is not the name of a host", "node-a"),
        ("anna@node-a:4", "is not a host", "anna@node-a slots=4"),
        ("node-a node-b", "'node-b' is not understood", "a line of its own"),
        ("node-a slots=4 node-b", "one word too many", "node-a slots=4, and"),
        ("node-a,node-b", "more than one host", "node-a, node-b"),
        ("slots=4", "not with a host", "node-a slots=4"),
        ("node!a", "cannot be there", "node-a"),
        ("-oProxyCommand=x", "not with a host", "node-a"),
        ("-oProxyCommand", "cannot be there", "oProxyCommand"),
        ("an;na@node-a", "more than one host", "an"),
        ("$(reboot)", "cannot be there", "reboot"),
        ("an!na@node-a", "not the name of a user", "user@node-a"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_right_form(tmp_path: Path, line: str, what: str, do: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"first\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_hostfile(path)
    (problem,) = caught.value.problems
    assert what in problem.what
    assert problem.where == f"{path}:2"
    assert do in problem.do


def test_all_mistakes_at_once_and_a_host_only_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("node-a\nnode-b slot=1\nanna@Node-A slots=2\n")
    with pytest.raises(ConfigError) as caught:
        read_hostfile(path)
    assert [problem.where for problem in caught.value.problems] == [f"{path}:2", f"{path}:3"]
    assert "node-a is in line 1 already" in caught.value.problems[1].what


def test_a_file_without_hosts_or_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="there is no host in it"):
        read_hostfile(tmp_path / "empty")
    with pytest.raises(UsageError, match="No such file"):
        read_hostfile(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        read_hostfile(tmp_path / "binary")
