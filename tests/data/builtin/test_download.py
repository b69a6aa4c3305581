"""fetch() against a real server that cuts, lies, changes its mind, and sends other things than it was asked for."""

from __future__ import annotations

import hashlib
import ipaddress
import resource
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base import files
from kgdist.base.errors import DataError, KgdistError
from kgdist.data.builtin.archive import Patience, fetch, fetch_sha256
from tests.data.loopback import Site, serving
from tests.patience import patience

CONTENT = b"PK" + bytes(range(256)) * 400  # about 100 kB
QUICK = Patience(timeout=patience(0.5), attempts=4, delay=0.0)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as one:
        one.files["/a.zip"] = CONTENT
        yield one


def get(site: Site, target: Path, **options: Any) -> None:
    fetch(site.url + "/a.zip", target, **{"limit": 1 << 20, "advice": "try this", "patience": QUICK, **options})


def ranges(site: Site) -> list[str | None]:
    return [wanted for _, wanted in site.asked]


def test_a_file_arrives_whole_and_alone(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
    assert ranges(site) == [None]


@pytest.mark.parametrize("tags", ["strong", "date"])
def test_a_cut_connection_is_continued_where_it_was_cut(site: Site, tmp_path: Path, tags: str) -> None:
    site.tags, site.plan = tags, ["cut:1000", "cut:500"]
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert ranges(site) == [None, "bytes=1000-", "bytes=1500-"]


@given(
    cuts=st.lists(st.integers(0, len(CONTENT)), max_size=3),
    ranged=st.booleans(),
    tags=st.sampled_from(["strong", "weak", "none"]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wherever_it_is_cut_the_bytes_are_right(
    site: Site, tmp_path_factory: pytest.TempPathFactory, cuts: list[int], ranged: bool, tags: str
) -> None:
    target = tmp_path_factory.mktemp("cut") / "a.zip"
    site.plan, site.ranges, site.tags = [f"cut:{cut}" for cut in cuts], ranged, tags
    get(site, target)
    assert target.read_bytes() == CONTENT and len(list(target.parent.iterdir())) == 1


def test_the_next_call_continues_what_this_one_had_to_leave(site: Site, tmp_path: Path) -> None:
    site.plan = ["cut:60000"]
    with pytest.raises(KgdistError, match=r"/a\.zip: .*cut after 60,000 of 102,402 bytes; 60,000 bytes are kept.*; try this"):
        get(site, tmp_path / "a.zip", patience=QUICK._replace(attempts=1))
    assert not (tmp_path / "a.zip").exists()
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT and ranges(site) == [None, "bytes=60000-"]


def test_bytes_that_all_arrived_are_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    """As when the process died between the last byte and the renaming."""
    site.plan = ["cut:60000"]
    with pytest.raises(KgdistError):
        get(site, tmp_path / "a.zip", patience=QUICK._replace(attempts=1))
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT and len(site.asked) == 1


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("other", [b"PK other" * 20000, b"PK" + bytes(len(CONTENT) - 2), b"PK shorter"])
def test_a_file_that_changed_meanwhile_is_begun_anew(site: Site, tmp_path: Path, stubborn: bool, other: bytes) -> None:
    """Stubborn servers answer with a range of the new file; one that is shorter than what we have answers 416."""
    site.plan = ["cut:60000"]
    with pytest.raises(KgdistError):
        get(site, tmp_path / "a.zip", patience=QUICK._replace(attempts=1))
    site.files["/a.zip"], site.stubborn = other, stubborn
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == other


def test_a_server_without_ranges_sends_it_all_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.plan = False, ["cut:60000"]
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT and len(site.asked) == 2


def test_nothing_is_continued_from_another_place(site: Site, tmp_path: Path) -> None:
    site.plan = ["cut:60000"]
    with pytest.raises(KgdistError):
        get(site, tmp_path / "a.zip", patience=QUICK._replace(attempts=1))
    site.files["/mirror/a.zip"] = b"PK mirror"
    fetch(site.url + "/mirror/a.zip", tmp_path / "a.zip", limit=1000, advice="", patience=QUICK)
    assert (tmp_path / "a.zip").read_bytes() == b"PK mirror"


@pytest.mark.parametrize(
    "note", [b"", b"[]", b"{}", b'{"url": 1}', b'{"url": "URL", "version": "x\\r\\nEvil: 1", "total": 102402}']
)
def test_a_damaged_note_is_no_note(site: Site, tmp_path: Path, note: bytes) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"PK junk")
    (tmp_path / "a.zip.part.json").write_bytes(note.replace(b"URL", (site.url + "/a.zip").encode()))
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT and ranges(site) == [None]


@pytest.mark.parametrize("mood", ["500", "429", "silent", "trickle", "cut:0", "cut:1", "moved"])
def test_what_passes_is_tried_again(site: Site, tmp_path: Path, mood: str) -> None:
    site.plan = [mood]
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT and len(site.asked) == 2


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("html", r"/a\.zip: the server sent a web page .* instead of the archive; try this"),
        ("404", r"/a\.zip: the server answered 404 Not Found; try this"),
        ("204", r"/a\.zip: the server gave the unexpected answer 204; try this"),
        ("empty", r"/a\.zip: the server sent something else instead of the archive; try this"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(site: Site, tmp_path: Path, mood: str, message: str) -> None:
    site.plan = [mood]
    with pytest.raises(KgdistError, match=message):
        get(site, tmp_path / "a.zip")
    assert len(site.asked) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mood", "tags"), [("500", "strong"), ("long", "strong"), ("cut:1", "strong"), ("cut:5000", "none")])
def test_trying_again_ends(site: Site, tmp_path: Path, mood: str, tags: str) -> None:
    site.plan, site.tags = [mood] * 99, tags
    with pytest.raises(KgdistError, match=r"http://127.0.0.1:\d+/a\.zip: .*, 4 times in a row.*; try this"):
        get(site, tmp_path / "a.zip")
    assert len(site.asked) <= 5  # the row starts anew at most once a MiB of progress
    assert not (tmp_path / "a.zip").exists()


def test_a_server_that_announces_no_length_is_taken_at_its_word_up_to_the_limit(site: Site, tmp_path: Path) -> None:
    site.plan = ["chunked", "endless"]
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    with pytest.raises(KgdistError, match=r"sends more than 1,048,576 bytes; try this"):
        get(site, tmp_path / "b.zip")


def test_too_much_is_refused_by_its_announcement(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KgdistError, match=r"has 102,402 bytes, expected at most 1,000; try this"):
        get(site, tmp_path / "a.zip", limit=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_small_disk_is_noticed_before_the_first_byte(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)  # a disk of this size cannot be made without being root
    with pytest.raises(KgdistError, match=r"a\.zip\.part: not enough disk space \(0\.1 MB needed, 0\.0 MB free\)"):
        get(site, tmp_path / "a.zip")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_not_taken_for_the_network(site: Site, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(KgdistError, match=r"a\.zip\.part: cannot be written \(File too large\)"):
            get(site, tmp_path / "a.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(site.asked) == 1
    get(site, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_host_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a.zip"
        with pytest.raises(KgdistError, match=f"{url}: Connection refused, 4 times in a row; try this"):
            fetch(url, tmp_path / "a.zip", limit=1000, advice="try this", patience=QUICK)


def test_a_hash_that_is_known_must_hold(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path / "a.zip", sha256=hashlib.sha256(CONTENT).hexdigest().upper())
    with pytest.raises(DataError, match=r"/a\.zip: its sha256 is .*, expected 0{64}; it is thrown away, try this"):
        get(site, tmp_path / "b.zip", sha256="0" * 64)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize(
    ("served", "found"),
    [(b"AB" * 32 + b"  a.zip\n", "ab" * 32), (b"ab" * 31, None), (b"", None), (b"<html>", None), (None, None)],
)
def test_a_mirror_may_publish_a_hash(site: Site, served: bytes | None, found: str | None) -> None:
    if served is not None:
        site.files["/a.zip.sha256"] = served
    assert fetch_sha256(site.url + "/a.zip.sha256", QUICK) == found


def certified(folder: Path) -> Path:
    """A certificate of 127.0.0.1, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(key.private_bytes(*form) + signed.public_bytes(serialization.Encoding.PEM))
    return path


def test_an_encrypted_address_does_not_lead_to_one_that_is_not(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(context) as secure:
        secure.files["/a.zip"] = CONTENT
        get(secure, tmp_path / "a.zip")
        assert (tmp_path / "a.zip").read_bytes() == CONTENT
        secure.plan = [f"to:{site.url}/a.zip"]
        with pytest.raises(KgdistError, match=rf"/a.zip: leads to {site.url}/a.zip, which is not encrypted; try this$"):
            get(secure, tmp_path / "b.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "certificate.pem"]
