"""CUDA_VISIBLE_DEVICES as the CUDA driver reads it."""

import pytest

from llmdoctor_core.probes import visible


def four():
    return [{"index": i, "name": "NVIDIA L4", "uuid": f"GPU-{i}abc-0000", "mig_enabled": False} for i in range(4)]


def order(devices):
    seen = [device for device in devices if device["visible_as"] is not None]
    return [device["index"] for device in sorted(seen, key=lambda device: device["visible_as"])]


@pytest.mark.parametrize(
    ("value", "expected", "problem"),
    [
        (None, [0, 1, 2, 3], None),
        ("", [], None),
        ("2,0", [2, 0], None),
        (" 3 , 1", [3, 1], None),
        ("0,2,-1,1", [0, 2], "'-1' is no index"),
        ("0,7,1", [0], "'7' is no index of this host, which has 4 GPUs"),
        ("1,1", [], "second time"),
        ("all", [], "neither an index nor a UUID"),
        ("NoDevFiles", [], "neither"),
        ("GPU-2abc-0000,GPU-0abc-0000", [2, 0], None),
        ("GPU-3", [3], None),
        ("gpu-3", [], "neither"),
        ("GPU-", [], "fits 4 GPUs"),
        ("GPU-9,GPU-1", [], "is no UUID of this host"),
        ("1,", [1], "neither"),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(value, expected, problem):
    devices = four()
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    told, uncertain = visible.number(devices, environ)
    assert order(devices) == expected
    assert (told is None) if problem is None else (problem in told)
    assert uncertain is None


def with_mig():
    whole = {"index": 0, "name": "NVIDIA A100", "uuid": "GPU-a", "mig_enabled": True}
    slices = [{"index": 0, "name": "x", "uuid": f"MIG-{n}", "mig_enabled": True, "mig_parent": "GPU-a"} for n in "pq"]
    return [whole, *slices, {"index": 1, "name": "NVIDIA A100", "uuid": "GPU-b", "mig_enabled": False}]


@pytest.mark.parametrize(
    ("value", "uuids"),
    [(None, ["MIG-p"]), ("MIG-q", ["MIG-q"]), ("MIG-p,MIG-q", ["MIG-p"]), ("1", ["GPU-b"]), ("0,1", ["MIG-p"])],
)
def test_one_mig_slice_and_no_whole_gpu_beside_it(value, uuids):
    devices = with_mig()
    visible.number(devices, {} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    assert [device["uuid"] for device in devices if device["visible_as"] is not None] == uuids
