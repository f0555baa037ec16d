"""Links: how the GPUs of a tensor parallel group reach each other, and what a slow way costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from llmdoctor_core.check import check
from llmdoctor_core.facts import Gpu, Gpus, Launch, Link, Links, Model, Place, System, Unavailable
from llmdoctor_core.finding import Evidence, Finding, seen, skip, warn
from llmdoctor_core.units import gib

from .launches import argument, flag, listed, size, taken
from .tables import row


def _groups(gpus: Gpus, launch: Launch) -> list[tuple[Gpu, ...]]:
    """The tensor parallel groups: consecutive GPUs, one group for each pipeline stage and data parallel rank."""
    tensor = size(launch, "tensor_parallel_size")
    chosen = taken(gpus, launch)
    return (
        [chosen[start : start + tensor] for start in range(0, len(chosen) - tensor + 1, tensor)] if tensor > 1 else []
    )


def _links_of(group: Sequence[Gpu], links: Links) -> list[Link]:
    found = (links.between(a.index, b.index) for a, b in combinations(group, 2))
    return [link for link in found if link is not None]


def _joined(group: Sequence[Gpu], links: Links) -> bool:
    """Whether every pair of the group has NVLink."""
    pairs = len(group) * (len(group) - 1) // 2
    return sum(link.nvlinks > 0 for link in _links_of(group, links)) == pairs


def _pairs(links: Sequence[Link]) -> str:
    return listed(f"{link.a}-{link.b} {link.label if link.label != 'unknown' else 'PCIe'}" for link in links)


def _matrix(links: Sequence[Link]) -> tuple[Evidence, ...]:
    return tuple(seen(f"GPU {link.a} to GPU {link.b}", link.label, "NVML") for link in links)


def _bandwidth(group: Sequence[Gpu]) -> float | None:
    """Usable GB/s of the slowest PCIe slot of the group, None where no slot tells its generation."""
    known = [
        found["gigabytes_per_second_x16"] * (gpu.pcie_width_max or 16) / 16
        for gpu in group
        if (found := row("pcie", generation=gpu.pcie_generation_max))
    ]
    return min(known) if known else None


def _all_reduce_bytes(model: Model, tensor: int, tokens: int) -> int:
    """Bytes each GPU sends for one step: two all-reduces a layer of hidden_size 16-bit values, ring factor 2(n-1)/n."""
    return int(len(model.layers) * 2 * model.hidden_size * 2 * tokens * 2 * (tensor - 1) / tensor)


@check("LINK101", "tensor-parallel-without-nvlink", runtimes={"vllm"}, remedy="by-hand")
def tensor_parallel_without_nvlink(
    gpus: Gpus, links: Links | Unavailable, launch: Launch, model: Model | None
) -> Iterator[Finding]:
    """Tensor parallel ranks exchange every layer's result over pairs without NVLink."""
    tensor = size(launch, "tensor_parallel_size")
    groups = _groups(gpus, launch)
    if not groups:
        return
    if isinstance(links, Unavailable):
        yield skip("how the GPUs are joined was not observed: {reason}", reason=links.reason)
        return
    for group in groups:
        between = _links_of(group, links)
        slow = [link for link in between if not link.nvlinks]
        unknown = [link for link in slow if link.path == "unknown"] if not gpus.assumed else []
        if len(between) < len(group) * (len(group) - 1) // 2 or unknown:
            yield skip("how these GPUs are joined was not read: {gpus}", gpus=listed(gpu.index for gpu in group))
            continue
        if not slow:
            continue
        better = next((other for other in combinations(gpus.visible, tensor) if _joined(other, links)), None)
        bandwidth = _bandwidth(group)
        tokens = launch.get("max_num_batched_tokens")
        if better:
            yield warn(
                "{flag} {tensor} takes GPUs {gpus}, joined without NVLink ({pairs}), while GPUs {better} are all "
                "joined by NVLink. Start with CUDA_VISIBLE_DEVICES={better}",
                evidence=_matrix(slow),
                where=argument(launch, "tensor_parallel_size"),
                flag=flag(launch, "tensor_parallel_size"),
                tensor=tensor,
                gpus=listed(gpu.index for gpu in group),
                pairs=_pairs(slow),
                better=",".join(str(gpu.index) for gpu in better),
            )
        elif model and bandwidth and isinstance(tokens, int):
            moved = _all_reduce_bytes(model, tensor, tokens)
            yield warn(
                "{flag} {tensor} runs over pairs without NVLink: {pairs}. A step of {tokens} tokens moves {moved} per "
                "GPU, about {ms} ms on a PCIe way of some {bandwidth:.0f} GB/s, and above two GPUs vLLM's custom "
                "all-reduce is off. It works; for throughput compare --pipeline-parallel-size {tensor}, or one engine "
                "a GPU (--data-parallel-size) where the model fits on one",
                evidence=(
                    *_matrix(slow),
                    seen(
                        "all-reduce",
                        f"2 x {len(model.layers)} layers x {model.hidden_size} x 2 bytes a token",
                        "model config",
                    ),
                ),
                where=argument(launch, "tensor_parallel_size"),
                flag=flag(launch, "tensor_parallel_size"),
                tensor=tensor,
                pairs=_pairs(slow),
                tokens=tokens,
                moved=gib(moved),
                ms=round(moved / bandwidth / 1e6),
                bandwidth=bandwidth,
            )
        else:
            yield warn(
                "{flag} {tensor} runs over pairs without NVLink: {pairs}. Two all-reduces a layer go over PCIe, and "
                "above two GPUs vLLM's custom all-reduce is off. It works; for throughput compare "
                "--pipeline-parallel-size {tensor}",
                evidence=_matrix(slow),
                where=argument(launch, "tensor_parallel_size"),
                flag=flag(launch, "tensor_parallel_size"),
                tensor=tensor,
                pairs=_pairs(slow),
            )


@check("LINK102", "p2p-unavailable", runtimes={"vllm"})
def p2p_unavailable(gpus: Gpus, links: Links | Unavailable, launch: Launch) -> Iterator[Finding]:
    """GPUs of one tensor parallel group cannot read each other's memory."""
    groups = _groups(gpus, launch)
    if not groups:
        return
    if isinstance(links, Unavailable):
        yield skip("how the GPUs are joined was not observed: {reason}", reason=links.reason)
        return
    for group in groups:
        between = _links_of(group, links)
        unread = [link for link in between if link.p2p is None]
        if unread:
            yield skip("whether these GPUs reach each other directly was not read: {pairs}", pairs=_pairs(unread))
        for link in between:
            if link.p2p not in (None, "ok"):
                yield warn(
                    "GPU {a} and GPU {b} cannot reach each other's memory: {reason}. NCCL copies through host memory "
                    "(/dev/shm) and vLLM turns its custom all-reduce off; on consumer GPUs this is by design, on "
                    "others look at the BIOS, ACS and the virtual machine",
                    evidence=(seen(f"P2P GPU {link.a} to GPU {link.b}", link.p2p, "NVML"),),
                    a=link.a,
                    b=link.b,
                    reason=link.p2p,
                )


@check("LINK103", "pcie-link-degraded")
def pcie_link_degraded(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """A GPU's PCIe link has fewer lanes than the GPU and its slot can do."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    narrow: dict[tuple[int, int], list[Gpu]] = {}
    for gpu in taken(gpus, launch):
        if gpu.mig_parent:
            continue
        if gpu.pcie_width is None or gpu.pcie_width_max is None:
            yield skip(
                "GPU {index}: the PCIe link was not read: {reason}",
                index=gpu.index,
                reason=gpu.unread.get("pcie_width", "the driver does not tell"),
            )
        elif gpu.pcie_width < gpu.pcie_width_max:
            narrow.setdefault((gpu.pcie_width, gpu.pcie_width_max), []).append(gpu)
    for (width, most), group in narrow.items():
        yield warn(
            "GPUs {gpus} ({name}) run on {width} of {most} PCIe lanes: loading weights and traffic between GPUs "
            "take {factor:.0f} times as long. Reseat the card or riser, and look for a slot shared with another "
            "device; virtual machines and some instance types have it so by design",
            evidence=tuple(seen(f"GPU {gpu.index} PCIe lanes", f"{width} of {most}", "NVML") for gpu in group),
            where=Place(kind="device", name=group[0].uuid or f"gpu {group[0].index}"),
            gpus=listed(gpu.index for gpu in group),
            name=group[0].name,
            width=width,
            most=most,
            factor=most / max(width, 1),
        )


@check("LINK104", "acs-or-iommu-redirects-p2p", runtimes={"vllm"}, remedy="by-hand")
def acs_or_iommu_redirects_p2p(
    gpus: Gpus, links: Links | Unavailable, launch: Launch, system: System | Unavailable
) -> Iterator[Finding]:
    """The IOMMU or PCIe access control sends traffic between GPUs the long way, where it may never arrive."""
    groups = _groups(gpus, launch)
    if not groups:
        return
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    if isinstance(links, Unavailable) or isinstance(system, Unavailable):
        missing = links if isinstance(links, Unavailable) else system
        assert isinstance(missing, Unavailable)
        yield skip("links and kernel were not observed: {reason}", reason=missing.reason)
        return
    over_pcie = [link for group in groups for link in _links_of(group, links) if not link.nvlinks]
    if not over_pcie:
        return
    if system.iommu == "on" or system.acs:
        signs = [
            sign for sign, found in (("IOMMU translates", system.iommu == "on"), ("ACS redirects", system.acs)) if found
        ]
        yield warn(
            "GPUs {pairs} talk over PCIe and on this host {signs}: P2P is then reported as available but slow or "
            "broken, typically a hang right after vLLM prints the NCCL version. Switch ACS and the IOMMU off in the "
            "BIOS or boot with iommu=pt; to get started meanwhile set NCCL_P2P_DISABLE=1 and "
            "--disable-custom-all-reduce (a workaround)",
            evidence=tuple(seen("kernel", sign, "kernel command line and PCI configuration") for sign in signs),
            pairs=_pairs(over_pcie),
            signs=" and ".join(signs),
        )
    elif system.iommu is None and system.acs is None:
        yield skip("neither the IOMMU mode nor the ACS bits could be read")
