"""vLLM's KV cache planner: from the cache of each layer to groups, blocks, tokens and concurrency, or a refusal.

All counts are integers as vLLM's own; what differs between releases stands in ``data/planner.toml``. The functions and
files named here are vLLM's (v1/core/kv_cache_utils.py and v1/kv_cache_interface.py unless said otherwise).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .since import at, table

Kind = Literal["full", "latent", "sliding", "sliding latent", "chunked", "state", "cross"]
GIB = 1 << 30


class Spec(Struct, frozen=True, kw_only=True):
    """What one layer asks of the planner. Two layers share a group only if all of this is equal."""

    kind: Kind
    block_size: int
    """Tokens of one block."""
    page: int
    """Bytes of one block of this layer, padding included."""
    content: tuple[object, ...] = ()
    """What else tells the layer's storage from another's of equal page: heads, head sizes, dtype, state shapes."""
    unpadded: int | None = None
    """Bytes before padding; None where there is none."""
    window: int | None = None
    """Sliding window or chunk in tokens. A full layer has one where the hybrid manager is off: it is kept whole."""
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    alignment: int = 1
    """The block stride is rounded up to this many bytes (sparse MLA rows)."""
    replicated: bool = False
    """Whole on every rank of a decode context parallel group."""


class Need(Struct, frozen=True, kw_only=True):
    """What of the launch the planner reads."""

    max_model_len: int
    in_flight_tokens: int
    """Tokens scheduled and not yet settled, see ``specs.in_flight_tokens``."""
    encoder_tokens: int = 0
    context_shards: int = 1
    """Ranks among which a request's tokens are spread (decode and, where it counts, prefill context parallel)."""
    state_mode: str = "none"
    """``mamba_cache_mode``: ``none``, ``align`` or ``all``."""
    one_manager: bool = False
    """``disable_hybrid_kv_cache_manager``, given or forced."""
    blocks_override: int | None = None
    automatic_length: bool = False
    """``--max-model-len auto``: the length is lowered to what fits."""
    retained_tokens: int = 0
    """Tokens kept below a window for speculation with several modules."""
    block_outermost: bool = False
    """Whether the cache layout puts the block outermost, so that layers of different pages are packed (DeepSeek-V4)."""
    device: str = "GPU"


class Rules(Struct, frozen=True, kw_only=True):
    """How one release plans; see ``data/planner.toml`` for each row's source."""

    sliding_bounded: bool
    one_manager: bool
    state_dtype: Literal["first", "each"]
    state_blocks: Literal["one", "by length", "by mode"]
    all_mode_speculates: bool
    all_mode: bool
    sharded_by_prefill: bool
    mixed_page_sizes: bool
    groups_over: Literal["stage", "model"]
    striped: bool
    unify_pages: Literal["no", "multiply", "pad attention", "pad all"]
    full_allocation_fallback: bool
    tolerated_padding: float
    merge_buckets: bool
    packing: Literal["no", "window latent", "block outermost"]
    packed_block: Literal["repeats", "slots", "widest group"]
    packed_check: Literal["repeats", "blocks"]
    packed_concurrency: Literal["bytes", "blocks"]
    printed_tokens: Literal["pool", "concurrency"]
    given_blocks_are_the_pool: bool
    check: Literal["every layer", "first group", "every group"]
    null_block_reserved: bool
    estimates_length: bool
    gib_decimals: Literal["two", "rounded"]
    capacity_lines: tuple[str, ...]
    device_named: bool
    """Whether ``CPU`` stands in the line in place of ``GPU``."""
    available_line: str
    padding_line: str
    no_memory: str
    too_small: str
    estimate: str
    cannot_fit_a_token: str
    auto_fit_line: str
    pages_cannot_unify: str
    kinds_cannot_join: str


@lru_cache(maxsize=32)
def rules_for(version: str) -> Rules:
    """The planner's rules in a release."""
    return msgspec.convert(at(table("planner.toml")["rule"], version), Rules)


class Group(Struct, frozen=True, kw_only=True):
    """Layers that share one block table. ``specs`` differ only where layers of one kind have pages of their own."""

    layers: tuple[int, ...]
    """Numbers of the layers, counted over all stages in order."""
    specs: tuple[Spec, ...]

    @property
    def spec(self) -> Spec:
        return self.specs[0]


class Plan(Struct, frozen=True, kw_only=True):
    """What the engine will have. Bytes are of one device; with several stages, of the first."""

    groups: tuple[Group, ...]
    bytes_per_block: int
    blocks: int
    blocks_per_request: int
    tokens: int
    concurrency: float
    max_model_len: int
    padding: tuple[tuple[int, float], ...] = ()
    """Padding layers of each kind and their share in percent, as vLLM warns."""
    lines: tuple[str, ...] = ()


class RefusedError(Exception):
    """vLLM does not start: the code of the condition and vLLM's own words."""

    def __init__(self, code: str, message: str, **detail: str | int | float | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


class Outline(Struct, frozen=True, kw_only=True):
    """What holds whatever the pool: the groups, on the whole model and on each stage, and bytes of a block there."""

    groups: tuple[Group, ...]
    projected: tuple[tuple[Group, ...], ...]
    strides: tuple[int, ...]
    blocks_per_request: int
    need: Need


def outline(stages: Sequence[Sequence[Spec]], need: Need, rules: Rules) -> Outline:
    """Groups and bytes of the cache before any memory is known. Raises RefusedError where vLLM raises.

    ``stages`` are the layers of each pipeline stage in the order in which they register.
    """
    if need.retained_tokens:
        stages = [[_retaining(spec, need.retained_tokens) for spec in stage] for stage in stages]
    if rules.groups_over == "model":
        groups = group_layers([spec for stage in stages for spec in stage], need, rules)
        projected = tuple(_of_stage(groups, first, len(stage)) for first, stage in _offsets(stages))
    else:
        projected = tuple(tuple(group_layers(list(stage), need, rules)) for stage in stages)
        groups = list(projected[0])
    return Outline(
        groups=tuple(groups),
        projected=projected,
        strides=tuple(bytes_per_block(stage, need, rules) for stage in projected),
        blocks_per_request=sum(request_blocks(group, need, rules) for group in projected[0]),
        need=need,
    )


def plan(stages: Sequence[Sequence[Spec]], pools: Sequence[int], need: Need, rules: Rules) -> Plan:
    """Size the cache as ``get_kv_cache_configs`` does; ``pools`` are the bytes of each stage's pool.

    Raises RefusedError where vLLM raises.
    """
    return fill(stages, outline(stages, need, rules), pools, rules)


def fill(stages: Sequence[Sequence[Spec]], known: Outline, pools: Sequence[int], rules: Rules) -> Plan:
    """The plan of an outline with its pools. Raises RefusedError where the memory does not do."""
    need = known.need
    if need.blocks_override is not None and rules.given_blocks_are_the_pool:
        pools = [need.blocks_override * stride for stride in known.strides]
    usable = [
        pool - stride if rules.null_block_reserved else pool for pool, stride in zip(pools, known.strides, strict=True)
    ]
    fitted = need
    if need.automatic_length:
        fitted = replace(need, max_model_len=_automatic_length(known.projected, usable, need, rules))
    _check(stages, known.projected, usable, fitted, rules)
    blocks = min(pool // stride for pool, stride in zip(pools, known.strides, strict=True))
    if need.blocks_override is not None:
        blocks = need.blocks_override
    per_request = sum(request_blocks(group, fitted, rules) for group in known.projected[0])
    concurrency = blocks / _counted_blocks(known.projected[0], fitted, rules)
    tokens = printed_tokens(known.projected[0], blocks, concurrency, fitted, rules)
    padding = _padding(known.groups, rules)
    return Plan(
        groups=known.groups,
        bytes_per_block=known.strides[0],
        blocks=blocks,
        blocks_per_request=per_request,
        tokens=tokens,
        concurrency=concurrency,
        max_model_len=fitted.max_model_len,
        padding=padding,
        lines=(
            *_auto_fit_lines(usable, need, fitted, rules),
            *(rules.padding_line.format(layers=layers, share=share) for layers, share in padding),
            *capacity_lines(tokens, concurrency, fitted, rules),
        ),
    )


def capacity_lines(tokens: int, concurrency: float, need: Need, rules: Rules) -> tuple[str, ...]:
    """The lines of the release that tell tokens and concurrency."""
    values = {"device": need.device, "tokens": tokens, "length": need.max_model_len, "concurrency": concurrency}
    return tuple(line.format(**values) for line in rules.capacity_lines)


def gib(size: int, rules: Rules) -> str:
    """Bytes as this release prints GiB: always two decimals up to 0.13, rounded to two since."""
    return f"{size / GIB:.2f}" if rules.gib_decimals == "two" else str(round(size / GIB, 2))


# ------------------------------------------------------------------ one layer, one request


def layer_blocks(spec: Spec, need: Need, rules: Rules) -> int:
    """Blocks that one request of the maximum length reserves in one layer (``max_memory_usage_bytes`` of its kind)."""
    length, block = need.max_model_len, spec.block_size
    if spec.kind in ("full", "latent"):
        return _ceil(_ceil(length, 1 if spec.replicated else need.context_shards), block)
    if spec.kind in ("sliding", "sliding latent"):
        if not rules.sliding_bounded:
            return _ceil(length, block)
        assert spec.window is not None
        return _ceil(min(spec.window - 1 + need.in_flight_tokens, length), block) + 1
    if spec.kind == "chunked":
        assert spec.window is not None
        return _ceil(min(spec.window + need.in_flight_tokens, length), block)
    if spec.kind == "cross":
        return _ceil(need.encoder_tokens, block)
    return _state_blocks(spec, need, rules)


def _state_blocks(spec: Spec, need: Need, rules: Rules) -> int:
    if rules.state_blocks == "one":
        return 1
    if rules.state_blocks == "by length":
        return _ceil(need.max_model_len, spec.block_size)
    if need.state_mode == "align":
        return 2 + spec.speculative_blocks + spec.checkpoint_blocks
    if need.state_mode == "all" and rules.all_mode:
        extra = spec.speculative_blocks if rules.all_mode_speculates else 0
        return _ceil(need.max_model_len, spec.block_size) + extra
    return 1 + spec.speculative_blocks


def request_blocks(group: Group, need: Need, rules: Rules) -> int:
    """Blocks that one request of the maximum length takes from the pool for a group."""
    return max(layer_blocks(spec, need, rules) for spec in dict.fromkeys(group.specs))


def _retaining(spec: Spec, tokens: int) -> Spec:
    if spec.kind not in ("sliding", "sliding latent") or spec.window is None:
        return spec
    return replace(spec, window=spec.window + tokens)


# ------------------------------------------------------------------ groups


def group_layers(layers: list[Spec], need: Need, rules: Rules) -> list[Group]:
    """Which layers share a block table (``get_kv_cache_groups``). Raises RefusedError where kinds cannot be joined."""
    if need.one_manager or rules.one_manager:
        layers = _kept_whole(layers, rules)
    everything = tuple(range(len(layers)))
    if _merge(layers, rules):
        return [Group(layers=everything, specs=tuple(layers))]
    if rules.mixed_page_sizes and _one_type(layers):
        return [Group(layers=everything, specs=tuple(layers))]
    if packed := _packed(layers, need, rules):
        return packed
    try:
        unified = _unified_pages(layers, rules)
    except RefusedError:
        whole = _whole_or_none(layers, rules)
        if whole is None:
            raise
        return [Group(layers=everything, specs=tuple(whole))]
    return _split(unified, rules)


def _kept_whole(layers: list[Spec], rules: Rules) -> list[Spec]:
    """``unify_hybrid_kv_cache_specs``: beside full layers, window layers are kept whole."""
    shared = [spec for spec in layers if not spec.replicated]
    apart = [spec for spec in layers if spec.replicated]
    whole = {id(spec): new for part in (shared, apart) for spec, new in zip(part, _promoted(part, rules), strict=True)}
    return [whole[id(spec)] for spec in layers]


def _promoted(layers: list[Spec], rules: Rules) -> list[Spec]:
    if not layers or _merge(layers, rules) or (rules.mixed_page_sizes and _one_type(layers)):
        return layers
    full = [spec for spec in layers if spec.kind in ("full", "latent")]
    promoted = layers
    if full:
        sizes = {spec.block_size for spec in full}
        block = sizes.pop() if len(sizes) == 1 else None
        promoted = [_whole(spec, block or spec.block_size) for spec in layers]
    if not (_merge(promoted, rules) or _one_type(promoted)):
        raise RefusedError("ARG903", rules.kinds_cannot_join)
    return promoted


def _whole(spec: Spec, block: int) -> Spec:
    kinds: dict[str, Kind] = {"sliding": "full", "chunked": "full", "sliding latent": "latent"}
    if spec.kind not in kinds:
        return spec
    unpadded = spec.unpadded or spec.page
    page = unpadded * block // spec.block_size
    padded = spec.unpadded is not None
    return replace(
        spec,
        kind=kinds[spec.kind],
        block_size=block,
        page=max(spec.page, page) if padded else page,
        unpadded=page if padded else None,
    )


def _merge(layers: Sequence[Spec], rules: Rules) -> bool:
    """``is_kv_cache_spec_uniform``: one kind and storage; full layers with and without a window count as the same."""
    first = layers[0]
    if first.kind not in ("full", "latent"):
        return all(spec == first for spec in layers)
    unwindowed = replace(first, window=None)
    return all(replace(spec, window=None) == unwindowed for spec in dict.fromkeys(layers))


def _one_type(layers: Sequence[Spec]) -> bool:
    """``UniformTypeKVCacheSpecs.is_uniform_type``: every layer needs the same number of slots, whatever its page."""
    different = list(dict.fromkeys(layers))
    first = different[0]
    base = _base(first.kind)
    if any(_base(spec.kind) != base or spec.block_size != first.block_size for spec in different):
        return False
    if any(spec.replicated != first.replicated for spec in different):
        return False
    if base in ("sliding", "sliding latent", "chunked"):
        return all(spec.window == first.window for spec in different)
    if base == "state":
        return all(
            (spec.speculative_blocks, spec.checkpoint_blocks) == (first.speculative_blocks, first.checkpoint_blocks)
            for spec in different
        )
    return True


def _base(kind: Kind) -> str:
    return "full" if kind == "latent" else kind


def _unified_pages(layers: list[Spec], rules: Rules) -> list[Spec]:
    """``unify_kv_cache_spec_page_size``: every layer gets the largest page, by a longer block or by padding."""
    largest = max(spec.page for spec in layers)
    return [spec if spec.page == largest else _with_page(spec, largest, rules) for spec in layers]


def _with_page(spec: Spec, page: int, rules: Rules) -> Spec:
    padded = replace(spec, page=page, unpadded=spec.unpadded or spec.page)
    if rules.unify_pages == "no":
        raise RefusedError("ARG903", rules.pages_cannot_unify)
    if spec.kind == "state" and rules.unify_pages == "pad all":
        return padded
    if page % spec.page == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page), page=page)
    if spec.kind not in ("latent", "state") and rules.unify_pages in ("pad attention", "pad all"):
        return padded
    raise RefusedError("ARG903", rules.pages_cannot_unify, page=spec.page, largest=page)


def _whole_or_none(layers: list[Spec], rules: Rules) -> list[Spec] | None:
    """``_try_get_full_allocation_fallback_groups``: MLA beside window layers of another page keeps those whole."""
    kinds = {spec.kind for spec in layers}
    if (
        not rules.full_allocation_fallback
        or not {"latent", "sliding"} <= kinds
        or kinds & {"sliding latent", "chunked"}
    ):
        return None
    try:
        whole = _promoted(layers, rules)
    except RefusedError:
        return None
    return whole if _one_type(whole) else None


def _buckets(layers: list[Spec], rules: Rules) -> list[list[int]]:
    """Numbers of the layers with one spec, joined where the release joins what merges."""
    by_spec: dict[Spec, list[int]] = {}
    for number, spec in enumerate(layers):
        by_spec.setdefault(spec, []).append(number)
    if not rules.merge_buckets:
        return list(by_spec.values())
    buckets: list[tuple[list[Spec], list[int]]] = []
    for spec, numbers in by_spec.items():
        for specs, bucket in buckets:
            if _merge([*specs, spec], rules) and _one_window([*specs, spec]):
                specs.append(spec)
                bucket.extend(numbers)
                break
        else:
            buckets.append(([spec], list(numbers)))
    return [bucket for _, bucket in buckets]


def _one_window(specs: Sequence[Spec]) -> bool:
    return len({spec.window for spec in specs if spec.window is not None}) <= 1


def _split(layers: list[Spec], rules: Rules) -> list[Group]:
    """``_get_kv_cache_groups_uniform_page_size``: buckets cut into groups of one size."""
    buckets = _buckets(layers, rules)
    size = _group_size([len(bucket) for bucket in buckets], rules)
    groups = []
    for bucket in buckets:
        count = _ceil(len(bucket), size)
        for number in range(count):
            part = bucket[number::count] if rules.striped else bucket[number * size : (number + 1) * size]
            groups.append(Group(layers=tuple(part), specs=tuple(layers[layer] for layer in part)))
    return groups


def _group_size(lengths: Sequence[int], rules: Rules) -> int:
    smallest, largest = min(lengths), max(lengths)
    return largest if largest < smallest * rules.tolerated_padding else smallest


def _padding(groups: Sequence[Group], rules: Rules) -> tuple[tuple[int, float], ...]:
    """Padding layers by kind as vLLM warns of them, from the groups that were made."""
    kinds: dict[Spec, int] = Counter()
    if len(groups) < 2 or any(len(set(group.specs)) > 1 for group in groups):
        return ()
    for group in groups:
        kinds[replace(group.spec, window=None) if group.spec.kind == "full" else group.spec] += len(group.layers)
    size = _group_size(list(kinds.values()), rules)
    lacking = [(size - count % size, count) for count in kinds.values()]
    return tuple((layers, layers / count * 100) for layers, count in lacking if layers != size)


def _packed(layers: list[Spec], need: Need, rules: Rules) -> list[Group] | None:
    """Layers of different pages packed side by side in one block: DeepSeek-V4's way."""
    if len({spec.page for spec in layers}) <= 1:
        return None
    if rules.packing == "window latent" and any(spec.kind == "sliding latent" for spec in layers):
        return _tuples(layers, rules)
    if rules.packing == "block outermost" and need.block_outermost:
        return _packed_buckets(layers)
    return None


def _by_page(numbers: Sequence[int], layers: Sequence[Spec]) -> dict[int, list[int]]:
    pages: dict[int, list[int]] = {}
    for number in numbers:
        pages.setdefault(layers[number].page, []).append(number)
    return pages


def _group_of(numbers: Sequence[int], layers: Sequence[Spec]) -> Group:
    return Group(layers=tuple(numbers), specs=tuple(layers[number] for number in numbers))


def _repeated(pages: dict[int, list[int]]) -> int:
    """Layers of the page size that most layers have: how often the pattern repeats."""
    return max(len(numbers) for numbers in pages.values())


def _tuples(layers: list[Spec], rules: Rules) -> list[Group]:
    """``group_and_unify_kv_cache_specs`` and ``_get_kv_cache_groups_uniform_groups`` (0.20 to 0.28)."""
    latent = [n for n, spec in enumerate(layers) if spec.kind == "latent"]
    if rules.packed_block != "widest group":
        layers = _padded_to({layers[number].page for number in latent}, layers)
    windows: dict[tuple[int, int | None], list[int]] = {}
    for number, spec in enumerate(layers):
        if spec.kind == "sliding latent":
            windows.setdefault((spec.block_size, spec.window), []).append(number)
    pages = [_by_page(numbers, layers) for numbers in (latent, *windows.values())]
    size = approximate_divisor([_repeated(page) for page in pages], _repeated(pages[0]))
    groups = [_group_of(latent, layers)]
    for numbers, page in zip(windows.values(), pages[1:], strict=True):
        count = _ceil(_repeated(page), size)
        repeats = list(zip(*page.values(), strict=False))
        if count == 1:
            groups.append(_group_of(numbers, layers))
            continue
        groups += [_group_of([n for repeat in repeats[i::count] for n in repeat], layers) for i in range(count)]
    return groups


def _padded_to(sizes: set[int], layers: list[Spec]) -> list[Spec]:
    """Windowed layers with the next larger page of the unbounded ones."""
    return [
        replace(spec, page=min((size for size in sizes if size >= spec.page), default=spec.page))
        if spec.kind == "sliding latent"
        else spec
        for spec in layers
    ]


def _packed_buckets(layers: list[Spec]) -> list[Group]:
    """``_get_packed_kv_cache_groups`` (since 0.29)."""
    buckets: list[list[int]] = []
    for number, spec in enumerate(layers):
        for bucket in buckets:
            if _one_type([*(layers[n] for n in bucket), spec]):
                bucket.append(number)
                break
        else:
            buckets.append([number])
    pages = [_by_page(bucket, layers) for bucket in buckets]
    balanced = [len({len(numbers) for numbers in page.values()}) == 1 for page in pages]
    floor = max((_repeated(p) for p, even in zip(pages, balanced, strict=True) if even and len(p) > 1), default=0)
    repeats = (
        approximate_divisor([_repeated(p) for p, even in zip(pages, balanced, strict=True) if even], floor)
        if floor
        else None
    )

    def parts(page: dict[int, list[int]], even: bool) -> int:
        return _ceil(_repeated(page), repeats) if even and repeats else 1

    def of_states(bucket: list[int]) -> bool:
        return layers[bucket[0]].kind == "state" or (repeats is None and _is_window(layers[bucket[0]]))

    def widest(page: dict[int, list[int]], count: int) -> int:
        return sum(_ceil(len(numbers), count) * size for size, numbers in page.items())

    anchor = max(
        widest(page, len(bucket) if of_states(bucket) else parts(page, even))
        for bucket, page, even in zip(buckets, pages, balanced, strict=True)
    )
    groups = []
    for bucket, page, even in zip(buckets, pages, balanced, strict=True):
        count = parts(page, even)
        if of_states(bucket):
            count = max(count, _ceil(len(bucket), max(anchor // layers[bucket[0]].page, 1)))
        if count == 1:
            groups.append(_group_of(bucket, layers))
            continue
        pattern = list(zip(*page.values(), strict=False))
        groups += [_group_of([n for repeat in pattern[i::count] for n in repeat], layers) for i in range(count)]
    return groups


def _is_window(spec: Spec) -> bool:
    return spec.kind in ("sliding", "sliding latent")


def approximate_divisor(values: Sequence[int], lower: int) -> int:
    """``_approximate_gcd``: the size, at least ``lower``, to which rounding up wastes least; of equals the larger."""
    least = max(1, lower)
    if least > max(values):
        return least
    return min(range(least, max(values) + 1), key=lambda size: (sum(-value % size for value in values), -size))


# ------------------------------------------------------------------ the pool


def bytes_per_block(groups: Sequence[Group], need: Need, rules: Rules) -> int:
    """Bytes of one block of the pool: the widest group's pages (``_get_kv_cache_bytes_per_block``)."""
    if _repeating(groups, rules):
        if rules.packed_block == "repeats":
            return _repeated_bytes(groups)
        if rules.packed_block == "slots":  # of each page size the most that a group has
            return sum(page * slots for page, slots in _slots(groups).items())
    if need.block_outermost and len({spec.page for group in groups for spec in group.specs}) > 1:
        widest = max(sum(spec.page for spec in group.specs) for group in groups)
        return _round_up(widest, math.lcm(*(spec.alignment for group in groups for spec in group.specs)))
    return max(sum(_round_up(spec.page, spec.alignment) for spec in group.specs) for group in groups)


def _repeating(groups: Sequence[Group], rules: Rules) -> bool:
    """Whether these are the groups of ``_tuples``."""
    return rules.packing == "window latent" and len(groups) > 1 and any(g.spec.kind == "sliding latent" for g in groups)


def _slots(groups: Sequence[Group]) -> dict[int, int]:
    slots: dict[int, int] = {}
    for group in groups:
        for page, layers in Counter(spec.page for spec in group.specs).items():
            slots[page] = max(slots.get(page, 0), layers)
    return slots


def _repeated_bytes(groups: Sequence[Group]) -> int:
    """One page of each size of the unbounded layers, as often as the pattern repeats in the group that has it most."""
    return sum({spec.page for spec in groups[0].specs}) * max(_slots(groups).values())


def _counted_blocks(groups: Sequence[Group], need: Need, rules: Rules) -> int:
    """Blocks of a request as this release counts them for the concurrency it prints."""
    if not _repeating(groups, rules) or rules.packed_concurrency == "blocks":
        return sum(request_blocks(group, need, rules) for group in groups)
    pages = [sum(spec.page for spec in group.specs) for group in groups]
    needed = sum(page * request_blocks(group, need, rules) for page, group in zip(pages, groups, strict=True))
    return _ceil(needed, pages[0])


def _of_stage(groups: Sequence[Group], first: int, count: int) -> tuple[Group, ...]:
    """The groups as one stage has them; a group may be empty there (``_project_kv_cache_groups_to_worker``)."""
    projected = []
    for group in groups:
        kept = [(n, s) for n, s in zip(group.layers, group.specs, strict=True) if first <= n < first + count]
        specs = tuple(spec for _, spec in kept) or (replace(group.spec, page=0, unpadded=None),)
        projected.append(Group(layers=tuple(n for n, _ in kept), specs=specs))
    return tuple(projected)


def _offsets(stages: Sequence[Sequence[Spec]]) -> list[tuple[int, Sequence[Spec]]]:
    firsts, first = [], 0
    for stage in stages:
        firsts.append((first, stage))
        first += len(stage)
    return firsts


def printed_tokens(groups: Sequence[Group], blocks: int, concurrency: float, need: Need, rules: Rules) -> int:
    """The tokens of the capacity line as this release counts them."""
    if rules.printed_tokens == "concurrency":
        return int(concurrency * need.max_model_len)
    smallest = min(group.spec.block_size for group in groups)
    return blocks // len(groups) * smallest * need.context_shards


# ------------------------------------------------------------------ whether it starts


def _needed(stage: Sequence[Spec], groups: Sequence[Group], need: Need, rules: Rules) -> int:
    """Bytes that one request needs, as this release counts them for its check."""
    if rules.check == "every layer":
        return sum(layer_blocks(spec, need, rules) * spec.page for spec in stage)
    stride = bytes_per_block(groups, need, rules)
    if rules.packed_check == "repeats" and _repeating(groups, rules):
        stride = _repeated_bytes(groups)
    if rules.check == "first group" and len(groups) > 1:
        return stride * request_blocks(groups[0], need, rules)
    return stride * sum(request_blocks(group, need, rules) for group in groups)


def longest_length(fits: Callable[[int], bool], longest: int) -> int:
    """The largest length up to ``longest`` that fits, by vLLM's own bisection; 0 where not even one token fits."""
    if not fits(1):
        return 0
    left, right, found = 1, longest, 1
    while left <= right:
        middle = (left + right) // 2
        if fits(middle):
            found, left = middle, middle + 1
        else:
            right = middle - 1
    return found


def _longest(stage: Sequence[Spec], groups: Sequence[Group], memory: int, need: Need, rules: Rules) -> int:
    return longest_length(
        lambda length: _needed(stage, groups, replace(need, max_model_len=length), rules) <= memory,
        need.max_model_len,
    )


def _automatic_length(projected: Sequence[Sequence[Group]], usable: Sequence[int], need: Need, rules: Rules) -> int:
    """``_auto_fit_max_model_len``. Raises RefusedError where not even one token fits."""
    lengths = [_longest((), groups, memory, need, rules) for groups, memory in zip(projected, usable, strict=True)]
    if min(lengths) <= 0:
        raise RefusedError("MEM803", rules.cannot_fit_a_token)
    return min(lengths)


def _auto_fit_lines(usable: Sequence[int], need: Need, fitted: Need, rules: Rules) -> tuple[str, ...]:
    if fitted.max_model_len == need.max_model_len:
        return ()
    values = {"longest": need.max_model_len, "length": fitted.max_model_len, "device": need.device}
    return (rules.auto_fit_line.format(available=gib(min(usable), rules), **values),)


def _check(
    stages: Sequence[Sequence[Spec]],
    projected: Sequence[Sequence[Group]],
    usable: Sequence[int],
    need: Need,
    rules: Rules,
) -> None:
    """``_check_enough_kv_cache_memory`` for every stage."""
    for stage, groups, memory in zip(stages, projected, usable, strict=True):
        if memory <= 0:
            raise RefusedError("MEM803", rules.no_memory, available_bytes=memory)
        needed = _needed(stage, groups, need, rules)
        if needed <= memory:
            continue
        length = _longest(stage, groups, memory, need, rules) if rules.estimates_length else 0
        message = rules.too_small.format(
            length=need.max_model_len,
            needed=gib(needed, rules),
            available=gib(memory, rules),
            estimate=rules.estimate.format(length=length) if length else "",
        )
        raise RefusedError(
            "CTX603",
            message,
            max_model_len=need.max_model_len,
            needed_bytes=needed,
            available_bytes=memory,
            estimated_max_model_len=length or None,
        )


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to
