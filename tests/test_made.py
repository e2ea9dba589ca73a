"""A result is made once, is whole or not there, and is made again when what it is from changes."""

import multiprocessing
import os
from dataclasses import dataclass

import pytest

from offramp.errors import ConfigError, FileFormatError
from offramp.made import fingerprint, is_whole, once


@dataclass(frozen=True)
class Settings:
    width: int = 3


@pytest.fixture
def made():
    """The folders in which `make` was called, and `make`."""

    class Maker(list):
        def __call__(self, place):
            self.append(place)
            (place / "parts").mkdir(exist_ok=True)
            (place / "parts" / "a.txt").write_text("12345")

    return Maker()


def test_a_result_is_made_once(made, tmp_path):
    assert once(tmp_path / "r", Settings(), made) == tmp_path / "r"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    once(tmp_path / "r", Settings(), made)
    assert made == [tmp_path / "r"]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    once(tmp_path / "r", Settings(width=4), made)
    assert len(made) == 2
    assert not is_whole(tmp_path / "r", Settings())


@pytest.mark.parametrize("damage", ["shorter", "changed", "gone", "no list", "no json"])
def test_a_damaged_result_is_made_again(made, tmp_path, damage):
    once(tmp_path, {"x": 1}, made)
    file, done = tmp_path / "parts" / "a.txt", tmp_path / "done.json"
    if damage == "gone":
        file.unlink()
    elif damage in ("shorter", "changed"):
        file.write_text({"shorter": "1234", "changed": "54321"}[damage])
    else:
        done.write_text({"no list": '{"files": 3}', "no json": "{"}[damage])
    once(tmp_path, {"x": 1}, made)
    assert len(made) == 2
    assert is_whole(tmp_path, {"x": 1})


def test_a_result_that_was_not_finished_is_not_whole(made, tmp_path):
    def fail(place):
        made(place)
        raise RuntimeError

    once(tmp_path, {"x": 1}, made)
    with pytest.raises(RuntimeError):
        once(tmp_path, {"x": 2}, fail)
    assert not is_whole(tmp_path, {"x": 1}) and not is_whole(tmp_path, {"x": 2})


def test_a_path_stands_for_its_content_or_for_what_it_was_made_from(made, tmp_path):
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.parquet"
    file.write_bytes(b"one")
    first = fingerprint([tmp_path / "data", file])
    os.utime(file, (1, 1))
    assert fingerprint([tmp_path / "data", file]) == first, "the time is not the content"
    file.write_bytes(b"two")
    assert fingerprint([tmp_path / "data", file]) != first
    once(tmp_path / "r", 1, made)
    one = fingerprint(tmp_path / "r")
    once(tmp_path / "r", 2, made)
    assert fingerprint(tmp_path / "r") != one, "the same files, of other inputs"


def test_what_has_no_json_form_is_refused():
    with pytest.raises(ConfigError, match="dataclasses and paths, got object; name what tells"):
        fingerprint({"x": object()})


def test_the_folder_of_a_ledger_is_not_written_into(splits, made, tmp_path):
    splits["test"].save(tmp_path / "out")
    with pytest.raises(FileFormatError, match="it holds a ledger"):
        once(tmp_path / "out", 1, made)


def test_a_second_process_waits_for_the_first_and_does_not_repeat_its_work(tmp_path):
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()

    def work():
        once(tmp_path, 1, lambda place: queue.put("made") or (place / "a").write_text("1"))
        queue.put("done")

    processes = [fork.Process(target=work) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(queue.get() for _ in range(4)) == ["done", "done", "done", "made"]


def test_a_folder_in_the_place_of_the_file_that_says_done_is_named(tmp_path):
    (tmp_path / "made" / "done.json").mkdir(parents=True)
    with pytest.raises(
        FileFormatError, match=r"done\.json must be a file, and is a folder; remove"
    ):
        once(tmp_path / "made", 1, lambda place: None)
