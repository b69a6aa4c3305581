"""What options, ssh_config and OpenSSH's defaults make of one host."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError, UsageError
from kgdist.options.config import Config
from kgdist.runtime.channels.ssh_config import Login, SshOptions, login_of, remote_command, with_includes
from kgdist.runtime.processes.forkserver import program
from tests.patience import patience


def login(spec: str = "hosta", found: Mapping[str, Any] | None = None, *, jumping: bool = False, **options: Any) -> Login:
    """The login of `spec`, of which ssh_config says `found`."""
    return login_of(spec, lambda host: {"hostname": host} | dict(found or {}), SshOptions(**options), jumping=jumping)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")
    monkeypatch.setenv("HOME", "/h")
    made = login()
    assert (made.host, made.address, made.port, made.user, made.jump, made.alias) == ("hosta", "hosta", 22, "me", None, "hosta")
    assert made.keys == ("/h/.ssh/id_ed25519", "/h/.ssh/id_ecdsa", "/h/.ssh/id_rsa") and not made.named and not made.only
    assert made.known_hosts[0] == Path("/h/.ssh/known_hosts") and Path("/etc/ssh/ssh_known_hosts") in made.known_hosts


def test_ssh_config_and_what_wins() -> None:
    found = {
        "hostname": "10.0.0.5",
        "port": "2200",
        "user": "ada",
        "identityfile": ["/k/one", "~/two"],
        "proxyjump": "gate",
        "hostkeyalias": "five",
        "userknownhostsfile": "/k/a /k/b",
        "globalknownhostsfile": "none",
        "hashknownhosts": "yes",
        "identitiesonly": "yes",
    }
    made = login(found=found)
    assert (made.address, made.port, made.user, made.jump, made.alias) == ("10.0.0.5", 2200, "ada", "gate", "five")
    assert made.keys[0] == "/k/one" and made.named and made.only and made.hashed
    assert made.known_hosts == (Path("/k/a"), Path("/k/b"))
    assert made.shown == "hosta (port 2200 of 10.0.0.5)"
    made = login(found=found, ssh_user="bob", ssh_port=22, ssh_key="/k/three", jump_host="x@door:24")
    assert (made.port, made.user, made.keys, made.jump) == (22, "bob", ("/k/three",), "x@door:24")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("gate", ("gate", 22, "ada")),
        ("eve@gate:2222", ("gate", 2222, "eve")),
        ("[fe80::1]:23", ("fe80::1", 23, "ada")),
        ("::1", ("::1", 22, "ada")),
    ],
)
def test_a_jump_host_has_its_own_user_and_port(spec: str, expected: tuple[str, int, str]) -> None:
    made = login(spec, jumping=True, ssh_user="ada", ssh_port=9999, jump_host=spec)
    assert (made.address, made.port, made.user) == expected and made.jump is None


@pytest.mark.parametrize(
    ("found", "options", "message"),
    [
        ({"proxycommand": "nc %h %p"}, {}, "ProxyCommand, which is not supported; .*--jump_host"),
        ({"proxyjump": "a,b"}, {}, "one jump host is supported, not 'a,b'"),
        ({}, {"jump_host": "a,b"}, "one jump host is supported, not 'a,b'"),
        ({"port": "70000"}, {}, "the port '70000'"),
        ({"port": "x"}, {}, "the port 'x'"),
        ({"hostname": "-oProxyCommand=id"}, {}, "HostName '-oProxyCommand=id'"),
        ({}, {"ssh_user": "-l root"}, "user '-l root'"),
        ({}, {"ssh_user": "$(id)"}, "user"),
        ({"user": "a;b"}, {}, "user 'a;b'"),
    ],
)
def test_what_is_refused_by_name(found: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"hosta: .*{message}|^{message}") as caught:
        login(found=found, **options)
    assert "\n" not in str(caught.value)


def test_a_second_jump_is_refused() -> None:
    with pytest.raises(UsageError, match="gate: ssh_config reaches this jump host through far; one jump is supported"):
        login("gate", {"proxyjump": "far"}, jumping=True)


@pytest.mark.parametrize("spec", ["host -oProxyCommand=id", "a@b@c", "host:0", "host:99999", "", "host:", "[::1", "a\nb", "-x"])
def test_a_host_that_is_none(spec: str) -> None:
    with pytest.raises(UsageError):
        login(spec, jumping=True)


def test_options_come_from_the_table() -> None:
    config = Config(ssh_user="ada", ssh_port=23, accept_new_host_keys=True, remote_python="/p")
    options = SshOptions.of(config)
    assert options == SshOptions(ssh_user="ada", ssh_port=23, accept_new_host_keys=True, remote_python="/p")
    assert options.python == "/p" and SshOptions().python == sys.executable


def test_includes(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "1").write_text("Host a\n  User one\n")
    (tmp_path / "conf.d" / "2").write_text("Include two\n")
    (tmp_path / "two").write_text("Host b\n Port 2")
    (tmp_path / "loop").write_text(f"Include {tmp_path}/loop\nPort 4\n")
    text = with_includes("Include conf.d/*\nPort 3\nHost c\n Include two\n User x\n", tmp_path, warnings.append)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    assert lines == ["Host a", "User one", "Host *", "Host b", "Port 2", "Host *", "Host *", "Port 3", "Host c", "User x"]
    assert warnings == ["an Include after the first Host or Match of ssh_config is not read; move it to the top of the file"]
    assert with_includes("Include loop\nInclude=none", tmp_path, warnings.append).count("Port 4") <= 20


def test_the_command_is_fixed_but_for_the_path() -> None:
    assert remote_command("/usr/py 3/bin/python", "m") == f"exec '/usr/py 3/bin/python' -c '{program('m')}'"
    assert remote_command("~/venv/bin/python", "m") == f"exec 'venv/bin/python' -c '{program('m')}'"
    assert "'" not in program("kgdist.runtime.agent.agent") and "!" not in program("kgdist.runtime.agent.agent")


@pytest.mark.parametrize("python", ["", "-c", "--version", "a=b", "python\nid", "a\0b", "~/"])
def test_paths_that_are_none(python: str) -> None:
    with pytest.raises(OptionError, match="--remote_python"):
        remote_command(python, "m")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="="), min_size=1, max_size=20))
def test_a_shell_takes_the_path_as_one_word(path: str) -> None:
    try:
        command = remote_command(path, "m")
    except OptionError:
        return
    assert shlex.split(command) == ["exec", path.removeprefix("~/"), "-c", program("m")]


@pytest.mark.parametrize("path", ["a'b", "a;b", "$(id)", "`id`", "a b", '"', "a\\", "#", "*", "!"])
def test_a_real_shell_as_well(path: str, tmp_path: Path) -> None:
    python = tmp_path / path
    python.write_text('#!/bin/sh\necho "$1 $2"\n')
    python.chmod(0o755)
    words = ["/bin/sh", "-c", remote_command(str(python), "m")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.stdout == f"-c {program('m')}\n", done.stderr
