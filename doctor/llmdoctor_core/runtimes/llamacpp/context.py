"""How llama-server divides its context: slots, the context of a sequence, what one slot may use, batch sizes.

Source: tools/server/server.cpp ``llama_server``, common/fit.cpp, src/llama-context.cpp ``llama_context`` and
tools/server/server-context.cpp ``n_ctx_slot``, llama.cpp b11434; older rules by build as data/builds.toml dates them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from llmdoctor_core.facts import Launch

from .builds import has
from .geometry import Geometry

MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ, src/llama-cparams.h."""
ROLLBACK_TYPES = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")


class Context(Struct, frozen=True, kw_only=True):
    """The context as the server sets it up, all counts in tokens."""

    slots: int
    unified: bool
    total: int
    """n_ctx, after padding."""
    sequence: int
    """n_ctx_seq: cells of a stream."""
    slot: int
    """n_ctx_slot: what one conversation can use."""
    batch: int
    ubatch: int
    rollback: int = 0
    """n_rs_seq: extra rows of recurrent state for each sequence."""
    training: int | None = None
    """n_ctx_train after the YaRN flags."""
    chosen: bool = False
    """The person gave no -c: --fit may lower the total."""
    padding: int = 256
    warnings: tuple[str, ...] = ()

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.slots


def context(launch: Launch, geometry: Geometry, build: int, fitted: int | None = None) -> Context:
    """The context of the launch. ``fitted`` is the total that --fit lowered an unset -c to."""
    slots, unified = slots_of(launch, build)
    training = trained(launch, geometry, build)
    flash = launch.get("flash_attn") != "off"
    padding = 256 if has(build, "padding 256") or flash else 32
    asked = int(launch.get("ctx_size") or 0)
    cap = int(launch.get("kv_unified_per_slot") or 0)
    if asked == 0 and cap and not launch.given("ctx_size"):
        asked = slots * cap
    chosen = asked == 0 and not launch.given("ctx_size")
    total = asked or (fitted if chosen and fitted else _unset(launch, build, geometry, slots, unified))
    causal = not launch.get("embedding") and not launch.get("rerank")
    batch, ubatch = batches(launch, total, causal)
    total, sequence = _padded(total, slots, unified, padding, build)
    warnings = []
    written = geometry.training_length
    if written and sequence > written:
        warnings.append(
            f"llama_context: n_ctx_seq ({sequence}) > n_ctx_train ({written}) -- possible training context overflow"
        )
    slot = min(sequence, cap) if cap else sequence
    if training and slot > training and has(build, "slot capped"):
        warnings.append(
            f"srv    load_model: the slot context ({slot}) exceeds the training context of the model ({training}) "
            "- capping"
        )
        slot = training
    return Context(
        slots=slots,
        unified=unified,
        total=total,
        sequence=sequence,
        slot=slot,
        batch=batch,
        ubatch=ubatch,
        rollback=rollback(launch, geometry, build),
        training=training,
        chosen=chosen,
        padding=padding,
        warnings=tuple(warnings),
    )


def slots_of(launch: Launch, build: int) -> tuple[int, bool]:
    """Number of slots and whether they share one pool; without -np four that share, whatever --no-kv-unified says."""
    slots = int(launch.get("parallel") or 1)
    if slots < 0:
        return (4, True) if has(build, "slots automatic") else (1, False)
    return slots, bool(launch.get("kv_unified")) or not has(build, "streams")


def trained(launch: Launch, geometry: Geometry, build: int) -> int | None:
    """n_ctx_train, which YaRN flags that change the file's scale raise (llama_init_from_model)."""
    training, rope = geometry.training_length, geometry.rope
    kind = launch.get("rope_scaling") or rope.kind
    scale = _rope_scale(launch) or rope.factor
    if training is None or not has(build, "custom yarn") or kind != "yarn" or scale == rope.factor:
        return training
    origin = int(launch.get("yarn_orig_ctx") or 0) or rope.original or training
    return int(origin * scale)


def _rope_scale(launch: Launch) -> float:
    if launch.given("rope_scale"):
        return float(launch["rope_scale"])
    frequency = float(launch.get("rope_freq_scale") or 0)
    return 1 / frequency if frequency else 0.0


def rollback(launch: Launch, geometry: Geometry, build: int) -> int:
    """n_rs_seq: drafted tokens that a recurrent state must be able to take back."""
    types = str(launch.get("spec_type") or "").split(",")
    if not geometry.rollback or not has(build, "rollback rows") or not any(kind in ROLLBACK_TYPES for kind in types):
        return 0
    return max(int(launch.get("spec_draft_n_max") or 0), 0)


def batches(launch: Launch, total: int, causal: bool) -> tuple[int, int]:
    """n_batch and n_ubatch; the logical batch is bound by the context before padding."""
    batch, ubatch = int(launch.get("batch_size", 2048)), int(launch.get("ubatch_size", 512))
    if not causal:
        batch = min(batch, ubatch)
    batch = min(total, batch)
    return batch, min(batch, ubatch) if ubatch > 0 else batch  # cast to unsigned: a negative one is larger


def _unset(launch: Launch, build: int, geometry: Geometry, slots: int, unified: bool) -> int:
    """The total without -c: the training length, for every sequence where they do not share one cache."""
    training = geometry.training_length or 4096
    fits = launch.get("fit") == "on"
    each = has(build, "context per sequence") and fits and not unified
    return training * (slots if each else 1)


def _padded(total: int, slots: int, unified: bool, padding: int, build: int) -> tuple[int, int]:
    def pad(count: int) -> int:
        return -(-count // padding) * padding

    if not has(build, "padding 256"):
        sequence = pad(total) if unified else pad(-(-total // slots))
        return (sequence if unified else sequence * slots), sequence
    total = pad(total)
    sequence = total if unified else pad(total // slots)
    return (total if unified else sequence * slots), sequence


def as_number(value: Any) -> int | None:
    """A value as a whole number where it is one (``-ngl 20``), None for words (``auto``)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
