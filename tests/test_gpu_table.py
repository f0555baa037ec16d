"""The built-in GPU table behind ``--gpu``."""

import pytest

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Links, Unavailable
from llmdoctor_core.gpu_table import gpus_from, links_from, rows

GIB = 1 << 30


@pytest.mark.parametrize(
    ("spec", "count", "name", "gib"),
    [
        ("A100-80GB", 1, "NVIDIA A100-SXM4-80GB", 79.25),
        ("a100 80gb x2", 2, "NVIDIA A100-SXM4-80GB", 79.25),
        ("L4x4", 4, "NVIDIA L4", 22.04),
        ("4xL4", 4, "NVIDIA L4", 22.04),
        ("A10G", 1, "NVIDIA A10G", 22.06),
        ("H100", 1, "NVIDIA H100 80GB HBM3", 79.19),
        ("H100x8", 8, "NVIDIA H100 80GB HBM3", 79.19),
        ("RTX4090", 1, "NVIDIA GeForce RTX 4090", 23.52),
        ("rtx 4090x2", 2, "NVIDIA GeForce RTX 4090", 23.52),
        ("NVIDIA A100-SXM4-40GB", 1, "NVIDIA A100-SXM4-40GB", 39.49),
    ],
)
def test_a_gpu_by_the_names_people_use(spec, count, name, gib):
    gpus = gpus_from(spec)
    assert [gpu.visible_as for gpu in gpus.devices] == list(range(count))
    assert {gpu.name for gpu in gpus.devices} == {name}
    assert gpus.devices[0].memory_total / GIB == pytest.approx(gib, abs=0.005)
    assert gpus.assumed


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("H300", "the nearest known are H200"),
        ("A100", "A100-80GB or A100-40GB"),
        ("V100x2", "V100-32GB or V100-16GB"),
        ("", "known are"),
        ("L4x0", "0 GPUs"),
        ("L4x1000", "1000 GPUs"),
        ("L4x" + "9" * 500, "unknown GPU"),
    ],
)
def test_what_is_not_known_is_named_with_the_nearest(spec, words):
    with pytest.raises(InputError) as error:
        gpus_from(spec)
    assert words in str(error.value)


def test_links_where_the_model_decides_them():
    assert {pair.label for pair in links_from("H100x4").pairs} == {"NV18"}
    alone = links_from("L4x2")
    assert isinstance(alone, Links)
    assert alone.pairs[0].nvlinks == 0
    assert isinstance(links_from("RTX-3090x2"), Unavailable)


def test_every_row_is_complete():
    names = [row.name for row in rows()]
    assert len(names) == len(set(names))
    for row in rows():
        assert row.source
        assert 10 * GIB < row.total_bytes < 300 * GIB
        assert gpus_from(row.name).devices[0].name == row.cuda_name
        assert (row.nvlink == "switch") == bool(row.nvlinks and row.nvlink != "pairs")
    assert all("a100" in row.cuda_name.lower() for row in rows() if row.name.startswith("A100"))
