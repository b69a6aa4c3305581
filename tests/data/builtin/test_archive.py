"""unpack() on archives that are damaged, hostile, or merely packed in another way."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base import files
from kgdist.base.errors import DataError, KgdistError
from kgdist.data.builtin.catalog import archive
from tests.data.loopback import zipped

GOOD = {"train.txt": b"a\tr\tb\n" * 50, "entities.dict": b"0\ta\n1\tb\n"}


def unpack(content: bytes, folder: Path, limit: int = 1 << 20) -> dict[str, bytes]:
    """What lies in folder/out afterwards; nothing else may have come into being."""
    (folder / "a.zip").write_bytes(content)
    (folder / "out").mkdir(exist_ok=True)
    before = set(folder.rglob("*"))
    try:
        archive.unpack(folder / "a.zip", folder / "out", limit=limit)
    finally:
        assert all(folder / "out" in (path, *path.parents) for path in set(folder.rglob("*")) - before)
    return {str(p.relative_to(folder / "out")): p.read_bytes() for p in (folder / "out").rglob("*") if p.is_file()}


@pytest.mark.parametrize("top", ["", "FB15k/", "other name/"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_the_top_folder_does_not_matter(tmp_path: Path, top: str, method: int) -> None:
    members = {top + name: content for name, content in GOOD.items()}
    litter = {"__MACOSX/" + top + "._train.txt": b"x", top + ".DS_Store": b"x", **({top: b""} if top else {})}
    assert unpack(zipped({**litter, **members}, method), tmp_path) == GOOD


def test_folders_below_the_top_stay(tmp_path: Path) -> None:
    members = {"train.txt": b"1", "more/train.txt": b"2"}
    assert unpack(zipped({"top/" + name: content for name, content in members.items()}), tmp_path) == members


@pytest.mark.parametrize(
    "name",
    ["../evil", "a/../../evil", "/etc/evil", "a/..", "./a", "a//b", "..\\evil", "C:\\evil", "C:/evil", "a\0b", "\\\\host\\x"],
)
def test_a_member_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    content = zipped({"train.txt": b"x", "N" * len(name): b"evil"}).replace(b"N" * len(name), name.encode())
    with pytest.raises(DataError, match=r"a\.zip: refused, its member .* would leave the folder or has an odd name"):
        unpack(content, tmp_path)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    info = zipfile.ZipInfo("train.txt")
    info.external_attr = (kind | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=r"'train.txt' is a link or a device"):
        unpack(out.getvalue(), tmp_path)


def test_a_bomb_is_refused_by_what_it_announces(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"would unpack to 3,000,000 bytes, this data set has at most 1,048,576; not unpacked"):
        unpack(zipped({f"{i}.txt": bytes(1_000_000) for i in range(3)}), tmp_path)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("claimed", [10, 999_999, 1_000_001])
def test_a_bomb_that_lies_about_its_size_does_not_get_further_than_the_lie(tmp_path: Path, claimed: int) -> None:
    content = zipped({"train.txt": bytes(1_000_000)}).replace(struct.pack("<L", 1_000_000), struct.pack("<L", claimed))
    with pytest.raises(DataError, match=r"not a sound zip archive"):
        unpack(content, tmp_path, limit=1_000_001)
    assert not (tmp_path / "out/train.txt").exists() or (tmp_path / "out/train.txt").stat().st_size <= claimed


def test_very_many_members_and_none_at_all_are_refused(tmp_path: Path) -> None:
    for members, count in (({f"{i}": b"" for i in range(1001)}, 1001), ({}, 0)):
        with pytest.raises(DataError, match=f"holds {count} files, expected 1 to 1000"):
            unpack(zipped(members), tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("train.txt", "one")
        file.writestr("train.txt", "two")
    with pytest.raises(DataError, match=r"it holds 'train.txt' twice"):
        unpack(out.getvalue(), tmp_path)


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped({"train.txt": b"x"}))
    content[content.index(b"PK\1\2") + 8] |= 1
    with pytest.raises(DataError, match=r"'train.txt' is encrypted"):
        unpack(bytes(content), tmp_path)


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'train.txt' is compressed in an unusual way; pack it again with plain zip"):
        unpack(zipped({"train.txt": b"x"}, zipfile.ZIP_BZIP2), tmp_path)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_noticed_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One byte changed, or the end missing: DataError, or the very same content, but maybe under another name or without a
    member, since the directory of an archive is under no checksum.
    """
    content = bytearray(zipped(GOOD))
    if data.draw(st.booleans(), "truncate"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack(bytes(content), tmp_path_factory.mktemp("zip"))
    except DataError:
        return
    assert set(found.values()) <= set(GOOD.values())


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_it_fail_in_another_way(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    for content in (junk, b"PK\3\4" + junk, junk + zipped({"train.txt": b"x"})[-60:]):
        try:
            unpack(content, tmp_path_factory.mktemp("junk"))
        except DataError as error:
            assert "\n" not in str(error)


def test_a_small_disk_is_noticed_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: archive.MARGIN + 100)  # such a disk cannot be made without being root
    with pytest.raises(KgdistError, match=r"out: not enough disk space \(16\.8 MB needed, 16\.8 MB free\)"):
        unpack(zipped(GOOD), tmp_path)
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(GOOD))
    (tmp_path / "out").write_bytes(b"a file is in the way")
    with pytest.raises(KgdistError, match=r"out: cannot be written \((File exists|Not a directory)\)"):
        archive.unpack(tmp_path / "a.zip", tmp_path / "out", limit=1 << 20)
