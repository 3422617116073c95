from __future__ import annotations

from pathlib import Path

import pytest

from tgi_api.cli import values


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "yes", " Yes "])
def test_boolean_takes_the_usual_words_for_true(word: str) -> None:
    assert values.boolean(word) is True


@pytest.mark.parametrize("word", ["false", "False", "0", "no"])
def test_boolean_takes_the_usual_words_for_false(word: str) -> None:
    assert values.boolean(word) is False


@pytest.mark.parametrize("word", ["", "on", "2", "tru"])
def test_boolean_refuses_everything_else(word: str) -> None:
    with pytest.raises(ValueError, match="one of true, false"):
        values.boolean(word)


def test_integer_includes_both_ends_of_its_range() -> None:
    read = values.integer(1, 3)
    assert [read("1"), read("3")] == [1, 3]
    for text in ("0", "4", "x", "1.0", ""):
        with pytest.raises(ValueError, match="a whole number from 1 to 3"):
            read(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("2GiB", 2 * 1024**3),
        ("1.5 GiB", 1536 * 1024**2),
        ("500MB", 500_000_000),
        ("3kB", 3000),
        ("3KB", 3000),
        ("4KiB", 4096),
        ("7 B", 7),
    ],
)
def test_size_takes_both_kinds_of_unit(text: str, size_bytes: int) -> None:
    assert values.size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "0GiB", "0.5", "0.1B", "-1", "2 gigabytes", "GiB", "1e9"])
def test_size_refuses_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 2GiB"):
        values.size_bytes(text)


def test_attention_takes_tgis_names_as_well() -> None:
    read = [values.attention(name) for name in ("auto", " FlashInfer ", "paged", "FLASHDECODING", "triton")]
    assert read == ["auto", "flashinfer", "auto", "flash-attn", "triton"]


@pytest.mark.parametrize("text", ["0", "-0.1", "1.1", "nan", "x"])
def test_fraction_refuses_what_lies_outside(text: str) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        values.fraction(text)


def test_a_number_of_a_range_may_be_either_end() -> None:
    read = values.number_from(0, 100)
    assert [read(text) for text in ("0", "100", "2.5")] == [0.0, 100.0, 2.5]
    for text in ("-0.1", "100.1", "nan", "inf", "x"):
        with pytest.raises(ValueError, match="from 0 to 100"):
            read(text)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon"])
def test_seconds_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        values.seconds(text)


def test_address_takes_both_families_and_localhost() -> None:
    assert values.ip_address("localhost") == "127.0.0.1"
    assert values.ip_address("::") == "::"
    assert values.ip_address("10.0.0.1") == "10.0.0.1"
    with pytest.raises(ValueError, match="an IP address"):
        values.ip_address("d34db33f")


def test_paths_must_exist_where_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert values.existing_file(str(file)) == file
    assert values.existing_directory(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="a file that exists"):
        values.existing_file(str(tmp_path))
    with pytest.raises(ValueError, match="a directory that exists"):
        values.existing_directory(str(file))
