"""The ELF reader on libraries that the compiler makes here, and on damaged ones."""

import contextlib
import mmap
import platform
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmdoctor_core.probes import elf, fatbin, loader
from llmdoctor_core.probes.host import Host

from .conftest import compiled


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")
    source = folder / "small.c"
    source.write_text(
        '#include <math.h>\n#include <stdio.h>\ndouble f(double x) { printf("%f", x); return pow(x, x); }\n'
    )
    return compiled(
        source,
        folder / "libsmall.so",
        "-Wl,-soname,libsmall.so.3",
        "-Wl,-rpath,$ORIGIN/lib",
        "-Wl,--no-as-needed",
        "-lm",
    )


def test_a_library_as_the_linker_made_it(library):
    read = elf.read(str(library))
    assert read.soname == "libsmall.so.3"
    assert "libm.so.6" in read.needed
    assert "libc.so.6" in read.needed
    assert read.search == ("$ORIGIN/lib",)
    assert tuple(map(int, read.asks["GLIBC"].split("."))) >= (2, 2, 5)


def test_symbol_versions_agree_with_readelf(library):
    shown = subprocess.run(["readelf", "-V", str(library)], capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("no readelf")
    named = [word for word in shown.stdout.split() if word.startswith("GLIBC_")]
    assert elf.read(str(library)).asks["GLIBC"] == elf.highest(named)["GLIBC"]


def test_the_c_library_offers_what_it_is():
    host = Host("/", {})
    paths = loader.candidates(host, "libc.so.6", "x86_64", loader.cache(host))
    if not paths:
        pytest.skip("no glibc")
    offered = elf.read(paths[0]).offers["GLIBC"].split(".")
    assert list(map(int, offered[:2])) <= list(map(int, platform.libc_ver()[1].split(".")[:2]))


def test_the_loaders_cache_names_libraries_that_exist():
    cached = loader.cache(Host("/", {}))
    if not cached:
        pytest.skip("no loader cache")
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines()[1:]
    listed = [line for line in listed if "=>" in line]
    assert sum(len(paths) for paths in cached.values()) == len(listed)


def test_highest_compares_numbers_not_text():
    assert elf.highest(["GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30"]) == {
        "GLIBC": "2.34",
        "GLIBCXX": "3.4.30",
    }


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01" + bytes(100), b"\x7fELF\x02\x01" + bytes(10)]
)
def test_what_is_no_library_is_an_error_of_one_kind(tmp_path, content):
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError):
        elf.read(str(path))


@given(where=st.integers(0, 4095), value=st.integers(0, 255), length=st.integers(0, 20000))
def test_a_damaged_library_never_raises_anything_else(library, tmp_path_factory, where, value, length):
    content = bytearray(library.read_bytes())
    content[where % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(bytes(content[: max(length, 1)]))
    with contextlib.suppress(elf.ElfError):
        elf.read(str(path))


def image(kind, architecture, payload=24):
    header = struct.pack("<HHIQIIII", kind, 0x101, 64, payload, 0, 0, 0, architecture)
    return header.ljust(64, b"\0") + b"\xff" * payload


def container(*images):
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.fixture
def with_kernels(tmp_path):
    """A library whose sections hold fat binaries laid out as nvcc lays them out."""

    def make(**sections):
        lines = []
        for name, content in sections.items():
            numbers = ",".join(map(str, content))
            place = {"main": ".nv_fatbin", "relocatable": "__nv_relfatbin"}[name]
            lines.append(
                f'__attribute__((section("{place}"), aligned(8), used)) const unsigned char {name}_[] = {{{numbers}}};'
            )
        source = tmp_path / "kernels.c"
        source.write_text("\n".join(lines) + "\nint f(void) { return 0; }\n")
        return str(compiled(source, tmp_path / "kernels.so"))

    return make


def test_gpu_code_inside_a_library(with_kernels):
    first = container(image(2, 80), image(2, 90), image(1, 90))
    path = with_kernels(main=first + bytes(16) + container(image(2, 120)), relocatable=container(image(2, 75)))
    assert fatbin.read(path) == fatbin.Code(["75", "80", "90", "120"], ["90"])


def test_a_library_without_gpu_code(library):
    assert fatbin.read(str(library)) == fatbin.NO_CODE


@given(content=st.binary(max_size=200))
def test_damaged_gpu_code_ends_the_reading(content):
    data = container(image(2, 80)) + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 62) + content
    with mmap.mmap(-1, len(data)) as mapped:
        mapped.write(data)
        assert (2, 80) in fatbin._entries(mapped, 0, len(data))
