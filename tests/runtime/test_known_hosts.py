"""known_hosts: which keys are trusted, held against OpenSSH's own reading."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.runtime.channels.known_hosts import KnownHosts, fingerprint, host_name, parse_known_hosts, remember
from tests.patience import patience

ONE, TWO = b"\0\0\0\x0bssh-ed25519one", b"\0\0\0\x0bssh-ed25519two"


def line(names: str, blob: bytes = ONE, marker: str = "", kind: str = "ssh-ed25519") -> str:
    """One line of the file."""
    return f"{marker} {names} {kind} {base64.b64encode(blob).decode()} comment\n".lstrip()


def judge(text: str, host: str = "hosta", port: int = 22, blob: bytes = ONE) -> tuple[str, str]:
    """The verdict on `blob` shown by that host."""
    verdict = KnownHosts(parse_known_hosts(text, "f")).judge(host, port, blob)
    return verdict.word, verdict.place


@pytest.mark.parametrize(
    ("text", "word", "place"),
    [
        ("", "unknown", ""),
        ("# x\n\n" + line("hosta"), "known", "f:3"),
        (line("other,HostA,10.0.0.1"), "known", "f:1"),
        (line("other"), "unknown", ""),
        (line("hosta", TWO), "changed", "f:1"),
        (line("hosta", TWO) + line("hosta"), "known", "f:2"),
        (line("hosta", TWO, kind="ssh-rsa"), "changed", "f:1"),  # asked for that kind, it would show that key
        (line("host*"), "known", "f:1"),
        (line("host?"), "known", "f:1"),
        (line("host?.org,hos?"), "unknown", ""),
        (line("*,!hosta"), "unknown", ""),
        (line("!hosta,*", TWO), "unknown", ""),
        (line("*.org", TWO), "unknown", ""),
        (line("hosta") + line("*", marker="@revoked"), "revoked", "f:2"),
        (line("hosta") + line("*", TWO, marker="@revoked"), "known", "f:1"),
        (line("other", marker="@revoked"), "unknown", ""),
        (line("*", marker="@cert-authority"), "unknown", "f:1"),  # an authority's key is no host's key
        (line("*", TWO, marker="@cert-authority") + line("hosta"), "known", "f:2"),
        (line("hosta", marker="@strange"), "unknown", ""),
        ("hosta ssh-ed25519\nhosta ssh-ed25519 ===\nhosta\n" + line("hosta"), "known", "f:4"),
        (line("[hosta]:2222"), "unknown", ""),
        (line("host[ab]"), "unknown", ""),
        (line("|1|x|y") + line("|1|only"), "unknown", ""),
    ],
)
def test_the_verdict(text: str, word: str, place: str) -> None:
    assert judge(text) == (word, place)


def test_other_ports_have_other_names() -> None:
    assert host_name("HostA", 22) == "hosta" and host_name("::1", 2222) == "[::1]:2222"
    assert judge(line("[hosta]:2222"), port=2222)[0] == "known"
    assert judge(line("[hosta]:2222", TWO), port=2222)[0] == "changed"
    assert judge(line("hosta"), port=2222)[0] == "known"  # OpenSSH: the very key, under the name alone
    assert judge(line("hosta", TWO), port=2222)[0] == "unknown"
    assert judge(line("hosta", marker="@revoked"), port=2222)[0] == "revoked"


def test_kinds_to_ask_for() -> None:
    text = line("hosta", kind="ssh-rsa") + line("b") + line("hosta") + line("*", TWO, "@cert-authority", "x") + line("hosta")
    assert KnownHosts(parse_known_hosts(text, "f")).kinds("hosta", 22) == ["ssh-rsa", "ssh-ed25519"]


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("before", ["", "x", "x\n"])
def test_what_is_remembered_is_known(hashed: bool, before: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "known_hosts"
    if before:
        path.parent.mkdir()
        path.write_text(before)
    for host, port in (("hostA", 22), ("hostb", 2222)):
        remember(path, host, port, "ssh-ed25519", ONE, hashed=hashed)
    known = KnownHosts.read([path, tmp_path / "none"])
    assert known.judge("hosta", 22, ONE).word == "known" and known.judge("hostb", 2222, TWO).word == "changed"
    assert path.stat().st_mode & 0o077 == 0 or before
    assert ("hostb" in path.read_text()) is not hashed
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        pytest.skip("no ssh-keygen here to ask for its reading")
    done = subprocess.run(
        [keygen, "-F", "[hostb]:2222", "-f", str(path)], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        KnownHosts.read([tmp_path])


def test_the_fingerprint_is_that_of_ssh(tmp_path: Path) -> None:
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        pytest.skip("no ssh-keygen here")
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "k")], check=True, timeout=patience(60))
    done = subprocess.run(
        [keygen, "-l", "-f", str(tmp_path / "k")], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert fingerprint(base64.b64decode((tmp_path / "k.pub").read_text().split()[1])) == done.stdout.split()[1]


@given(st.text(max_size=100) | st.lists(st.sampled_from(["@revoked", "*", "!", "|1|", "a", " ", "\n", ",", "AAAA"])).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    assert judge(text)[0] in ("unknown", "changed", "revoked", "known")
