"""ensure(): what is there is used, what is not is brought whole or not at all, and every refusal says what to do."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgdist.base import files
from kgdist.base.errors import DataError, KgdistError, OptionError
from kgdist.data.builtin import catalog
from kgdist.data.builtin.catalog import BUILTIN, BuiltIn, ensure
from tests.data.loopback import Site, serving, zipped
from tests.patience import patience

SPLITS = {"train.txt": b"a\tr\tb\nb\tr\tc\n", "valid.txt": b"a\tr\tc\n", "test.txt": b"c\tr\ta"}
GOOD = {**SPLITS, "entities.dict": b"0\ta\n1\tb\n2\tc\n", "relations.dict": b"0\tr\n"}
COUNTED = {**SPLITS, "entity2id.txt": b"3\n", "relation2id.txt": b"1\n"}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serves a data set `tiny` that is in the table."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(BUILTIN, "tiny", BuiltIn(3, 1, 4, (2, 1, 1)))
    with serving() as one:
        one.files["/tiny.zip"] = zipped({"tiny/" + name: content for name, content in GOOD.items()})
        yield one


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    """What is there besides locks, which stay."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_set_is_fetched_once(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        assert ensure("tiny", tmp_path / "data", data_url=site.url + "/") == tmp_path / "data/tiny"
        assert contents(tmp_path / "data/tiny") == GOOD
    assert [path for path, _ in site.asked] == ["/tiny.zip.sha256", "/tiny.zip"]
    assert names(tmp_path / "data") == ["tiny"]


def test_a_dictionary_that_is_only_a_count_will_do(site: Site, tmp_path: Path) -> None:
    site.files["/tiny.zip"] = zipped(COUNTED)
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == COUNTED


@pytest.mark.parametrize("name", ["tiny", "my own graph", "FB15k"])
@pytest.mark.parametrize("train", ["train.txt", "train.txt.gz"])
def test_a_folder_that_is_there_is_used_as_it_is(tmp_path: Path, name: str, train: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / train).write_bytes(b"anything")
    assert ensure(name, tmp_path, data_url="http://127.0.0.1:1") == tmp_path / name


def test_an_archive_put_there_by_hand_is_taken(tmp_path: Path, site: Site) -> None:
    (tmp_path / "tiny.zip").write_bytes(site.files["/tiny.zip"])
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == GOOD
    assert site.asked == [] and names(tmp_path) == ["tiny", "tiny.zip"]


def test_an_empty_folder_is_filled_and_another_is_left_alone(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == GOOD
    (tmp_path / "tiny/train.txt").unlink()
    with pytest.raises(DataError, match=r"tiny: is there, but has no train.txt; move it away"):
        ensure("tiny", tmp_path, data_url=site.url)
    assert len(names(tmp_path / "tiny")) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train.txt": b"a\tr\tb\n"}, r"it has 1 triples in train.txt, this data set has 2"),
        ({"valid.txt": b""}, r"it has 0 triples in valid.txt, this data set has 1"),
        ({"entities.dict": b"0\ta\n"}, r"it has 1 entities, this data set has 3"),
        ({"relations.dict": b"0\tr\n1\ts\n"}, r"it has 2 relations, this data set has 1"),
        ({"test.txt": None}, r"it has no test.txt, found entities.dict, relations.dict, train.txt, valid.txt"),
        ({"entities.dict": None}, r"it has neither entities.dict nor entity2id.txt"),
        ({"entities.dict": None, "entity2id.txt": b"three\n"}, r"it has 0 entities, this data set has 3"),
        ({"../evil": b"x"}, r"would leave the folder"),
    ],
)
def test_another_archive_is_refused_and_fetched_anew_next_time(
    site: Site, tmp_path: Path, change: dict[str, bytes | None], message: str
) -> None:
    right, wrong = site.files["/tiny.zip"], {**GOOD, **change}
    site.files["/tiny.zip"] = zipped({name: content for name, content in wrong.items() if content is not None})
    after = r"kept as .*tiny.zip.refused, .* fetches it again, or fetch it by hand to .*tiny.zip or, unpacked, to .*tiny, or"
    with pytest.raises(DataError, match=f"^{site.url}/tiny.zip: .*{message}.*; {after}"):
        ensure("tiny", tmp_path, data_url=site.url)
    assert names(tmp_path) == ["tiny.zip.refused"] and not (tmp_path.parent / "evil").exists()
    site.files["/tiny.zip"] = right
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == GOOD


def test_a_server_that_announces_too_little_is_found_out(site: Site, tmp_path: Path) -> None:
    site.plan = ["short"]
    with pytest.raises(DataError, match=r"not a sound zip archive"):
        ensure("tiny", tmp_path, data_url=site.url)
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == GOOD


def test_a_bomb_is_not_unpacked(site: Site, tmp_path: Path) -> None:
    site.files["/tiny.zip"] = zipped({**GOOD, "train.txt": bytes(100 << 20)})
    assert len(site.files["/tiny.zip"]) < 1 << 20
    with pytest.raises(DataError, match=r"would unpack to 104,857,6\d\d bytes, this data set has at most 67,111,936"):
        ensure("tiny", tmp_path, data_url=site.url)
    assert names(tmp_path) == ["tiny.zip.refused"]


def test_a_hash_beside_the_archive_is_checked(site: Site, tmp_path: Path) -> None:
    site.files["/tiny.zip.sha256"] = b"0" * 64 + b"  tiny.zip"
    with pytest.raises(DataError, match=r"its sha256 is .*, expected 0{64}; it is thrown away, fetch it by hand to"):
        ensure("tiny", tmp_path, data_url=site.url)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("mood", "message"), [("html", "the server sent a web page"), ("404", "the server answered 404 Not Found")]
)
def test_a_failure_of_the_network_says_what_to_do(site: Site, tmp_path: Path, mood: str, message: str) -> None:
    site.plan = [mood]
    advice = rf"fetch it by hand to {tmp_path}/tiny.zip or, unpacked, to {tmp_path}/tiny, or name another place with --data_url"
    with pytest.raises(KgdistError, match=f"^{site.url}/tiny.zip: {message}.*; {advice}$") as failure:
        ensure("tiny", tmp_path, data_url=site.url)
    assert "\n" not in str(failure.value) and failure.value.exit_code == 1 and names(tmp_path) == []


def test_a_hash_that_is_pinned_is_of_the_content_whatever_its_order_and_line_ends(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = tuple(hashlib.sha256(text).hexdigest() for text in (b"a\tr\tb\nb\tr\tc\n", b"a\tr\tc\n", b"c\tr\ta\n"))
    monkeypatch.setitem(BUILTIN, "tiny", BuiltIn(3, 1, 4, (2, 1, 1), digests=digests))  # type: ignore[arg-type]
    assert contents(ensure("tiny", tmp_path / "one", data_url=site.url)) == GOOD
    site.files["/tiny.zip"] = zipped({**GOOD, "train.txt": b"b\tr\tc\r\na\tr\tb"})
    assert ensure("tiny", tmp_path / "two", data_url=site.url)
    wrong = {**GOOD, "test.txt": b"c\tr\tb\n"}
    site.files["/tiny.zip"] = zipped(wrong)
    site.files["/tiny.zip.sha256"] = hashlib.sha256(site.files["/tiny.zip"]).hexdigest().encode()  # of the same mirror
    found = hashlib.sha256(b"c\tr\tb\n").hexdigest()
    told = rf"its test.txt holds other triples: the sha256 of its sorted lines is {found}, that of this data set {digests[2]}"
    with pytest.raises(DataError, match=rf"^{site.url}/tiny.zip: {told}; kept as .*, or name another place with --data_url$"):
        ensure("tiny", tmp_path / "three", data_url=site.url)
    (tmp_path / "three/tiny.zip.refused").rename(tmp_path / "three/tiny.zip")
    with pytest.raises(DataError, match=rf"three/tiny.zip: {told}; take it away, .*; what you unpack to .*tiny yourself is used"):
        ensure("tiny", tmp_path / "three", data_url=site.url)
    (tmp_path / "three/tiny").mkdir()
    (tmp_path / "three/tiny/train.txt").write_bytes(b"mine")
    assert ensure("tiny", tmp_path / "three", data_url=site.url)


@pytest.mark.parametrize("place", ["http://mirror.example", "http://" + "192.0.2.1:80", "HTTP://[2001:db8::1]/a"])
@pytest.mark.parametrize("name", ["biokg", "wikikg2", "Freebase"])
def test_what_cannot_be_checked_does_not_come_over_an_open_line(tmp_path: Path, place: str, name: str) -> None:
    with pytest.raises(OptionError, match=rf"^--data_url: .* is not encrypted, and of {name} no digests .* https .*{name}.zip$"):
        ensure(name, tmp_path, data_url=place)
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_cleared_away(site: Site, tmp_path: Path) -> None:
    left = files._beside(tmp_path / "tiny", "tmp")
    left = left.with_name(left.name.replace(f".{os.getpid()}.", ".99999999."))
    left.mkdir()
    (left / "train.txt").write_bytes(b"half")
    (tmp_path / ".tiny.lock").write_bytes(b"")
    (tmp_path / ".tiny.zip.part").write_bytes(b"PK")
    assert contents(ensure("tiny", tmp_path, data_url=site.url)) == GOOD
    assert names(tmp_path) == ["tiny"]


ASKING = """
import sys
from kgdist.data.builtin.catalog import BUILTIN, BuiltIn, ensure
BUILTIN["tiny"] = BuiltIn(3, 1, 4, (2, 1, 1))
print(sorted(path.name for path in ensure("tiny", sys.argv[1], data_url=sys.argv[2]).iterdir()))
"""


def test_many_processes_may_ask_at_once(site: Site, tmp_path: Path) -> None:
    site.pace = 0.3
    command = [sys.executable, "-c", ASKING, str(tmp_path), site.url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.communicate(timeout=patience(60))[0] == f"{sorted(GOOD)}\n" and process.returncode == 0
    assert [path for path, _ in site.asked] == ["/tiny.zip.sha256", "/tiny.zip"] and names(tmp_path) == ["tiny"]


@pytest.mark.parametrize(
    ("name", "guess"),
    [("fb15k", "FB15k"), ("FB15K237", "FB15k-237"), ("WN18RR", "wn18rr"), ("word-net", "wordnet"), ("Bio KG", "biokg")],
)
def test_a_name_that_is_nearly_right_is_suggested(tmp_path: Path, name: str, guess: str) -> None:
    with pytest.raises(OptionError, match=rf"^--dataset: '{name}' is neither .*; did you mean {guess}\? built in are wordnet, "):
        ensure(name, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_folder_where_the_user_stands_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.tsv").write_text("a\tr\tb\n")
    with pytest.raises(OptionError, match=r"the folder mine is here: give --data_path \.; built in are"):
        ensure("mine", tmp_path / "data")


@pytest.mark.parametrize("name", ["", "..", "../data", "/etc", "a\0b", "$(id)", "qqqqqq", "x" * 5000])
def test_other_names_are_refused_with_the_way_to_own_files(tmp_path: Path, name: str) -> None:
    told = r"with train.txt, .tsv or .parquet; built in are .* --format raw_udd_hrt --data_files TRAIN"
    with pytest.raises(OptionError, match=told):
        ensure(name, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.org", "file:///etc", "example.org", "http://", "http://a b", "http://u:p@example.org", "http://[::1"),
        *(
            "http://example.org:x",
            "http://example.org/?q",
            "http://example.org/#f",
            "http://example.org/\n",
            "http://example.org/é",
        ),
    ],
)
def test_an_address_that_is_none_is_refused(site: Site, tmp_path: Path, url: str) -> None:
    with pytest.raises(OptionError, match=r"^--data_url: .* is not an address like https://example.org/folder that"):
        ensure("tiny", tmp_path, data_url=url)
    assert names(tmp_path) == []


def test_a_data_path_that_is_a_file_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(KgdistError, match=r"data: cannot be made \(File exists\); give a --data_path that can be written"):
        ensure("tiny", tmp_path / "data", data_url=site.url)


def test_the_table_adds_up() -> None:
    for known in BUILTIN.values():
        assert known.splits is None or sum(known.splits) == known.triples
        assert known.digests is None or all(re.fullmatch("[0-9a-f]{64}", digest) for digest in known.digests)
    assert set(BUILTIN) == {"wordnet", "FB15k", "FB15k-237", "wn18", "wn18rr", "Freebase", "wikikg2", "biokg"}
    assert catalog.USUAL_PLACE == "https://data.dgl.ai/dataset"


def test_the_real_fb15k_passes_as_fb15k_and_not_as_another(
    site: Site, tmp_path: Path, shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official files, packed as they are served."""
    source = shared_data("FB15k")
    with zipfile.ZipFile(tmp_path / "FB15k.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in GOOD:
            archive.write(source / name, f"FB15k/{name}")
    site.files["/FB15k.zip"] = site.files["/FB15k-237.zip"] = (tmp_path / "FB15k.zip").read_bytes()
    folder = ensure("FB15k", tmp_path / "data", data_url=site.url)
    assert {name: (folder / name).read_bytes() for name in GOOD} == {name: (source / name).read_bytes() for name in GOOD}
    with pytest.raises(DataError, match=r"it has 483,142 triples in train.txt, this data set has 272,115"):
        ensure("FB15k-237", tmp_path / "data", data_url=site.url)


@pytest.mark.parametrize("name", ["FB15k-237", "wn18", "wn18rr"])
def test_the_real_sets_have_the_digests_that_are_pinned(
    site: Site, tmp_path: Path, shared_data: Callable[[str], Path], name: str
) -> None:
    source = shared_data(name.upper() if name.startswith("wn") else name)
    with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_STORED) as archive:
        for file in GOOD:
            archive.write(source / file, f"{name}/{file}")
    folder = ensure(name, tmp_path, data_url=site.url)
    assert (folder / "test.txt").read_bytes() == (source / "test.txt").read_bytes() and site.asked == []
