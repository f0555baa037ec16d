"""Write tiny GGUF models that really load in llama-server, one per cache kind.

The *cache* geometry (layers, KV heads, head sizes, window, SSM sizes, context length)
is that of a real model; only the parts that do not touch the cache (embedding width,
FFN width, vocabulary, experts) are shrunk, so a file of a few MiB makes llama.cpp
print the very KV / RS sizes of the real model.

``hollow`` keeps every real width but writes the tensor data as a hole (sparse file): a
"20 GB" file that takes a few MiB on disk.  Good for model-buffer and compute-buffer
checks (llama-fit-params, llama-server --no-warmup) without any weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

F32, F16 = T.F32, T.F16


# --------------------------------------------------------------------------- vocabulary
def spm_vocab(n_vocab: int):
    """A minimal SentencePiece-style vocabulary: 3 controls, 256 bytes, letters, filler."""
    toks, scores, types = [], [], []

    def add(s, score, typ):
        toks.append(s.encode("utf-8"))
        scores.append(score)
        types.append(int(typ))

    kinds = gguf.TokenType
    add("<unk>", 0.0, kinds.UNKNOWN)
    add("<s>", 0.0, kinds.CONTROL)
    add("</s>", 0.0, kinds.CONTROL)
    for b in range(256):
        add(f"<0x{b:02X}>", 0.0, kinds.BYTE)
    for i, ch in enumerate("\u2581etaoinshrdlucmfwypvbgkjqxz"):
        add(ch, -10.0 - i, kinds.NORMAL)
    while len(toks) < n_vocab:
        add(f"<filler_{len(toks)}>", -1000.0, kinds.NORMAL)
    return toks[:n_vocab], scores[:n_vocab], types[:n_vocab]


# --------------------------------------------------------------------------- model specs
@dataclass
class Model:
    arch: str
    kv: dict  # "<key without arch prefix>" -> value
    tensors: list  # (name, (ne0, ne1, ...), ggml type)
    note: str = ""


@dataclass
class Dims:
    """Widths that do not influence the cache. tiny() and real differ only here."""

    n_embd: int
    n_ff: int
    n_vocab: int
    extra: dict = field(default_factory=dict)


def _common(arch, d, n_layer, ctx, n_head, n_kv, hd_k, hd_v=None, rope_dim=None, eps=1e-6):
    hd_v = hd_k if hd_v is None else hd_v
    return {
        "context_length": ctx,
        "embedding_length": d.n_embd,
        "block_count": n_layer,
        "feed_forward_length": d.n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.key_length": hd_k,
        "attention.value_length": hd_v,
        "attention.layer_norm_rms_epsilon": float(eps),
        "rope.dimension_count": rope_dim or hd_k,
        "rope.freq_base": 10000.0,
        "vocab_size": d.n_vocab,
    }


def _emb(d, untied=False):
    t = [("token_embd.weight", (d.n_embd, d.n_vocab), F16), ("output_norm.weight", (d.n_embd,), F32)]
    if untied:
        t.append(("output.weight", (d.n_embd, d.n_vocab), F16))
    return t


def _ffn(i, d, n_ff=None):
    n_ff = n_ff or d.n_ff
    return [
        (f"blk.{i}.ffn_gate.weight", (d.n_embd, n_ff), F16),
        (f"blk.{i}.ffn_up.weight", (d.n_embd, n_ff), F16),
        (f"blk.{i}.ffn_down.weight", (n_ff, d.n_embd), F16),
    ]


def _qkvo(i, d, nq, nk, nv, no=None):
    return [
        (f"blk.{i}.attn_q.weight", (d.n_embd, nq), F16),
        (f"blk.{i}.attn_k.weight", (d.n_embd, nk), F16),
        (f"blk.{i}.attn_v.weight", (d.n_embd, nv), F16),
        (f"blk.{i}.attn_output.weight", (no or nq, d.n_embd), F16),
    ]


def _norm(i, name, n):
    return (f"blk.{i}.{name}.weight", (n,), F32)


def llama(d, n_layer, n_head, n_kv, hd, ctx, yarn=None):
    kv = _common("llama", d, n_layer, ctx, n_head, n_kv, hd)
    if yarn:
        kv.update(
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": float(yarn[0]),
                "rope.scaling.original_context_length": yarn[1],
            }
        )
    t = _emb(d)
    for i in range(n_layer):
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("llama", kv, t)


def qwen3(d, n_layer, n_head, n_kv, hd, ctx):
    kv = _common("qwen3", d, n_layer, ctx, n_head, n_kv, hd)
    t = _emb(d)
    for i in range(n_layer):
        t += [
            _norm(i, "attn_norm", d.n_embd),
            _norm(i, "ffn_norm", d.n_embd),
            _norm(i, "attn_q_norm", hd),
            _norm(i, "attn_k_norm", hd),
        ]
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("qwen3", kv, t)


def gemma3(d, n_layer, n_head, n_kv, hd, window, ctx):
    kv = _common("gemma3", d, n_layer, ctx, n_head, n_kv, hd)
    kv["attention.sliding_window"] = window  # pattern 6 is hard-coded in llama.cpp
    t = _emb(d)
    for i in range(n_layer):
        t += [
            _norm(i, "attn_norm", d.n_embd),
            _norm(i, "post_attention_norm", d.n_embd),
            _norm(i, "ffn_norm", d.n_embd),
            _norm(i, "post_ffw_norm", d.n_embd),
            _norm(i, "attn_q_norm", hd),
            _norm(i, "attn_k_norm", hd),
        ]
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("gemma3", kv, t)


def gpt_oss(d, n_layer, n_head, n_kv, hd, window, ctx):
    ne, nu, fe = d.extra["n_expert"], d.extra["n_used"], d.extra["n_ff_exp"]
    kv = _common("gpt-oss", d, n_layer, ctx, n_head, n_kv, hd)
    kv.update(
        {
            "attention.sliding_window": window,
            "expert_count": ne,
            "expert_used_count": nu,
            "expert_feed_forward_length": fe,
        }
    )
    t = _emb(d, untied=True)
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "post_attention_norm", d.n_embd)]
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd)
        t += [
            (b + "attn_q.bias", (n_head * hd,), F32),
            (b + "attn_k.bias", (n_kv * hd,), F32),
            (b + "attn_v.bias", (n_kv * hd,), F32),
            (b + "attn_output.bias", (d.n_embd,), F32),
            (b + "attn_sinks.weight", (n_head,), F32),
            (b + "ffn_gate_inp.weight", (d.n_embd, ne), F32),
            (b + "ffn_gate_inp.bias", (ne,), F32),
            (b + "ffn_gate_exps.weight", (d.n_embd, fe, ne), F16),
            (b + "ffn_gate_exps.bias", (fe, ne), F32),
            (b + "ffn_up_exps.weight", (d.n_embd, fe, ne), F16),
            (b + "ffn_up_exps.bias", (fe, ne), F32),
            (b + "ffn_down_exps.weight", (fe, d.n_embd, ne), F16),
            (b + "ffn_down_exps.bias", (d.n_embd, ne), F32),
        ]
    return Model("gpt-oss", kv, t)


def deepseek2(
    d, n_layer, n_head, kv_lora, rope, nope, v, ctx, mla=True, arch="deepseek2", q_lora=0, indexer=None, dense_lead=1
):
    """mla=True: latent cache (new GGUF). mla=False: old GGUF without the *_mla keys."""
    ne, nu, fe, nsh = (d.extra[k] for k in ("n_expert", "n_used", "n_ff_exp", "n_shared"))
    hk = nope + rope
    kv = _common(
        arch,
        d,
        n_layer,
        ctx,
        n_head,
        1 if mla else n_head,
        kv_lora + rope if mla else hk,
        kv_lora if mla else v,
        rope_dim=rope,
    )
    if mla:
        kv.update({"attention.key_length_mla": hk, "attention.value_length_mla": v})
    kv.update(
        {
            "attention.kv_lora_rank": kv_lora,
            "attention.q_lora_rank": q_lora,
            "leading_dense_block_count": dense_lead,
            "expert_count": ne,
            "expert_used_count": nu,
            "expert_shared_count": nsh,
            "expert_feed_forward_length": fe,
            "expert_weights_scale": 1.0,
            "expert_gating_func": 1,
        }
    )
    if indexer:
        ih, isz, topk = indexer
        kv.update(
            {"attention.indexer.head_count": ih, "attention.indexer.key_length": isz, "attention.indexer.top_k": topk}
        )
    t = _emb(d, untied=True)
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd), _norm(i, "attn_kv_a_norm", kv_lora)]
        if q_lora:
            t += [
                _norm(i, "attn_q_a_norm", q_lora),
                (b + "attn_q_a.weight", (d.n_embd, q_lora), F16),
                (b + "attn_q_b.weight", (q_lora, n_head * hk), F16),
            ]
        else:
            t.append((b + "attn_q.weight", (d.n_embd, n_head * hk), F16))
        t.append((b + "attn_kv_a_mqa.weight", (d.n_embd, kv_lora + rope), F16))
        if mla:
            t += [
                (b + "attn_k_b.weight", (nope, kv_lora, n_head), F16),
                (b + "attn_v_b.weight", (kv_lora, v, n_head), F16),
            ]
        else:
            t.append((b + "attn_kv_b.weight", (kv_lora, n_head * (nope + v)), F16))
        t.append((b + "attn_output.weight", (n_head * v, d.n_embd), F16))
        if indexer:
            t += [
                (b + "indexer.k_norm.weight", (isz,), F32),
                (b + "indexer.k_norm.bias", (isz,), F32),
                (b + "indexer.proj.weight", (d.n_embd, ih), F16),
                (b + "indexer.attn_k.weight", (d.n_embd, isz), F16),
                (b + "indexer.attn_q_b.weight", (q_lora, ih * isz), F16),
            ]
        if i < dense_lead:
            t += _ffn(i, d)
        else:
            t += [
                (b + "ffn_gate_inp.weight", (d.n_embd, ne), F32),
                (b + "ffn_gate_exps.weight", (d.n_embd, fe, ne), F16),
                (b + "ffn_up_exps.weight", (d.n_embd, fe, ne), F16),
                (b + "ffn_down_exps.weight", (fe, d.n_embd, ne), F16),
                (b + "ffn_gate_shexp.weight", (d.n_embd, fe * nsh), F16),
                (b + "ffn_up_shexp.weight", (d.n_embd, fe * nsh), F16),
                (b + "ffn_down_shexp.weight", (fe * nsh, d.n_embd), F16),
            ]
    return Model(arch, kv, t)


def qwen35(d, n_layer, n_head, n_kv, hd, ctx, conv=4, state=128, k_heads=16, v_heads=32, interval=4, nextn=0):
    """Qwen3.5 dense: 3 gated-delta-net layers, then 1 full attention layer."""
    kv = _common("qwen35", d, n_layer + nextn, ctx, n_head, n_kv, hd, rope_dim=64)
    kv.update(
        {
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": interval,
            "ssm.conv_kernel": conv,
            "ssm.state_size": state,
            "ssm.group_count": k_heads,
            "ssm.time_step_rank": v_heads,
            "ssm.inner_size": v_heads * state,
        }
    )
    if nextn:
        kv["nextn_predict_layers"] = nextn
    key, val = state * k_heads, state * v_heads
    t = _emb(d)
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "post_attention_norm", d.n_embd)]
        if (i + 1) % interval == 0:
            t += _qkvo(i, d, n_head * hd * 2, n_kv * hd, n_kv * hd, no=n_head * hd)
            t += [_norm(i, "attn_q_norm", hd), _norm(i, "attn_k_norm", hd)]
        else:
            t += [
                (b + "attn_qkv.weight", (d.n_embd, 2 * key + val), F16),
                (b + "attn_gate.weight", (d.n_embd, val), F16),
                (b + "ssm_conv1d.weight", (conv, 2 * key + val), F32),
                (b + "ssm_dt.bias", (v_heads,), F32),
                (b + "ssm_a", (v_heads,), F32),
                (b + "ssm_beta.weight", (d.n_embd, v_heads), F16),
                (b + "ssm_alpha.weight", (d.n_embd, v_heads), F16),
                (b + "ssm_norm.weight", (state,), F32),
                (b + "ssm_out.weight", (val, d.n_embd), F16),
            ]
        t += _ffn(i, d)
    for i in range(n_layer, n_layer + nextn):  # one multi-token-prediction block
        b = f"blk.{i}."
        t += [
            _norm(i, "attn_norm", d.n_embd),
            _norm(i, "post_attention_norm", d.n_embd),
            _norm(i, "attn_q_norm", hd),
            _norm(i, "attn_k_norm", hd),
            (b + "nextn.eh_proj.weight", (2 * d.n_embd, d.n_embd), F16),
            (b + "nextn.enorm.weight", (d.n_embd,), F32),
            (b + "nextn.hnorm.weight", (d.n_embd,), F32),
            (b + "nextn.shared_head_norm.weight", (d.n_embd,), F32),
        ]
        t += _qkvo(i, d, n_head * hd * 2, n_kv * hd, n_kv * hd, no=n_head * hd) + _ffn(i, d)
    return Model("qwen35", kv, t)


def jamba(d, n_layer, n_head, n_kv, ctx, conv=4, state=16, dt_rank=8, attn_every=8, attn_at=4):
    """Mamba-1 / attention hybrid: head_count_kv is an array, 0 marks a recurrent layer."""
    hd = d.n_embd // n_head
    inner = 2 * d.n_embd
    arr = [n_kv if i % attn_every == attn_at else 0 for i in range(n_layer)]
    kv = _common("jamba", d, n_layer, ctx, n_head, arr, hd)
    kv.update(
        {"ssm.conv_kernel": conv, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": dt_rank}
    )
    t = _emb(d)
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        if arr[i]:
            t += _qkvo(i, d, d.n_embd, arr[i] * hd, arr[i] * hd)
        else:
            t += [
                (b + "ssm_in.weight", (d.n_embd, 2 * inner), F16),
                (b + "ssm_conv1d.weight", (conv, inner), F32),
                (b + "ssm_conv1d.bias", (inner,), F32),
                (b + "ssm_x.weight", (inner, dt_rank + 2 * state), F16),
                (b + "ssm_dt_norm.weight", (dt_rank,), F32),
                (b + "ssm_dt.weight", (dt_rank, inner), F16),
                (b + "ssm_dt.bias", (inner,), F32),
                (b + "ssm_b_norm.weight", (state,), F32),
                (b + "ssm_c_norm.weight", (state,), F32),
                (b + "ssm_a", (state, inner), F32),
                (b + "ssm_d", (inner,), F32),
                (b + "ssm_out.weight", (inner, d.n_embd), F16),
            ]
        t += _ffn(i, d)
    return Model("jamba", kv, t)


def mamba2(d, n_layer, ctx, conv=4, state=128, group=1, heads=None):
    inner = 2 * d.n_embd
    heads = heads or inner // 64
    kv = {
        "context_length": ctx,
        "embedding_length": d.n_embd,
        "block_count": n_layer,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": d.n_vocab,
        "ssm.conv_kernel": conv,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
        "ssm.group_count": group,
    }
    cd = inner + 2 * group * state
    t = _emb(d)
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [
            _norm(i, "attn_norm", d.n_embd),
            (b + "ssm_in.weight", (d.n_embd, inner + cd + heads), F16),
            (b + "ssm_conv1d.weight", (conv, cd), F32),
            (b + "ssm_conv1d.bias", (cd,), F32),
            (b + "ssm_dt.bias", (heads,), F32),
            (b + "ssm_a", (1, heads), F32),
            (b + "ssm_d", (1, heads), F32),
            (b + "ssm_norm.weight", (inner // group, group), F32),
            (b + "ssm_out.weight", (inner, d.n_embd), F16),
        ]
    return Model("mamba2", kv, t)


def gemma4(d, n_layer, n_head, kv_full, kv_swa, hd_full, hd_swa, window, shared, ctx, interval=6, per_layer=32):
    """Different head size on full and sliding layers, and the last `shared` layers own no cache."""
    swa = [(i + 1) % interval != 0 for i in range(n_layer)]
    arr_kv = [kv_swa if s else kv_full for s in swa]
    kv = _common("gemma4", d, n_layer, ctx, n_head, arr_kv, hd_full)
    kv.update(
        {
            "attention.key_length_swa": hd_swa,
            "attention.value_length_swa": hd_swa,
            "rope.dimension_count_swa": hd_swa,
            "rope.freq_base_swa": 10000.0,
            "attention.sliding_window": window,
            "attention.sliding_window_pattern": swa,
            "attention.shared_kv_layers": shared,
            "embedding_length_per_layer_input": per_layer,
            "feed_forward_length": [d.n_ff] * n_layer,
        }
    )
    t = _emb(d)
    t += [("rope_freqs.weight", (hd_full // 2,), F32)]
    if per_layer:
        t += [
            ("per_layer_token_embd.weight", (per_layer * n_layer, d.n_vocab), F16),
            ("per_layer_model_proj.weight", (d.n_embd, per_layer * n_layer), F16),
            ("per_layer_proj_norm.weight", (per_layer,), F32),
        ]
    for i in range(n_layer):
        b = f"blk.{i}."
        hd, nk = (hd_swa if swa[i] else hd_full), arr_kv[i]
        t += [
            _norm(i, "attn_norm", d.n_embd),
            _norm(i, "post_attention_norm", d.n_embd),
            _norm(i, "ffn_norm", d.n_embd),
            _norm(i, "post_ffw_norm", d.n_embd),
            _norm(i, "attn_q_norm", hd),
        ]
        t += [
            (b + "attn_q.weight", (d.n_embd, n_head * hd), F16),
            (b + "attn_output.weight", (n_head * hd, d.n_embd), F16),
        ]
        if i < n_layer - shared:
            t += [
                (b + "attn_k.weight", (d.n_embd, nk * hd), F16),
                (b + "attn_v.weight", (d.n_embd, nk * hd), F16),
                _norm(i, "attn_k_norm", hd),
            ]
        t += _ffn(i, d)
        if per_layer:
            t += [
                (b + "inp_gate.weight", (d.n_embd, per_layer), F16),
                (b + "proj.weight", (per_layer, d.n_embd), F16),
                _norm(i, "post_norm", d.n_embd),
            ]
    return Model("gemma4", kv, t)


def lfm2(d, n_layer, n_head, n_kv, ctx, l_cache=3, attn_at=(2, 5, 8, 10, 12, 14)):
    """Short-convolution hybrid."""
    hd = d.n_embd // n_head
    arr = [n_kv if i in attn_at else 0 for i in range(n_layer)]
    kv = _common("lfm2", d, n_layer, ctx, n_head, arr, hd)
    kv["shortconv.l_cache"] = l_cache
    t = [("token_embd.weight", (d.n_embd, d.n_vocab), F16), ("token_embd_norm.weight", (d.n_embd,), F32)]
    for i in range(n_layer):
        b = f"blk.{i}."
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        if arr[i]:
            t += [
                *_qkvo(i, d, d.n_embd, n_kv * hd, n_kv * hd),
                _norm(i, "attn_q_norm", hd),
                _norm(i, "attn_k_norm", hd),
            ]
        else:
            t += [
                (b + "shortconv.conv.weight", (l_cache, d.n_embd), F32),
                (b + "shortconv.in_proj.weight", (d.n_embd, 3 * d.n_embd), F16),
                (b + "shortconv.out_proj.weight", (d.n_embd, d.n_embd), F16),
            ]
        t += _ffn(i, d)
    return Model("lfm2", kv, t)


def mimo2(d, n_layer, n_head, kv_full, kv_swa, hd_k, hd_v, window, ctx, every=6):
    """K and V heads of different size, different KV head count on sliding layers."""
    swa = [i % every != 0 for i in range(n_layer)]
    arr = [kv_swa if s else kv_full for s in swa]
    ne, nu, fe = d.extra["n_expert"], d.extra["n_used"], d.extra["n_ff_exp"]
    kv = _common("mimo2", d, n_layer, ctx, n_head, arr, hd_k, hd_v, rope_dim=64)
    kv.update(
        {
            "attention.sliding_window": window,
            "attention.sliding_window_pattern": swa,
            "expert_count": ne,
            "expert_used_count": nu,
            "expert_feed_forward_length": fe,
            "expert_gating_func": 2,
            "rope.freq_base_swa": 10000.0,
        }
    )
    t = _emb(d, untied=True)
    for i in range(n_layer):
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        t += _qkvo(i, d, n_head * hd_k, arr[i] * hd_k, arr[i] * hd_v, no=n_head * hd_v) + _ffn(i, d)
    return Model("mimo2", kv, t)


MOE = {"n_expert": 4, "n_used": 2, "n_ff_exp": 32, "n_shared": 1}


def _d(hollow, real, tiny=None):
    """real = (n_embd, n_ff, n_vocab, extra)"""
    if hollow:
        return Dims(real[0], real[1], real[2], dict(MOE, **(real[3] if len(real) > 3 else {})))
    n_embd, n_ff = tiny or (32, 32)
    return Dims(n_embd, n_ff, 512, dict(MOE))


SPECS = {
    # name: (builder(hollow) -> Model, one-line note)
    "qwen3-8b": (
        lambda h: qwen3(_d(h, (4096, 12288, 151936)), 36, 32 if h else 8, 8, 128, 40960),
        "full attention GQA, n_ctx_train 40960",
    ),
    "mistral-7b": (
        lambda h: llama(_d(h, (4096, 14336, 32768)), 32, 32 if h else 8, 8, 128, 32768),
        "full attention GQA, n_ctx_train 32768",
    ),
    "small-ctx": (
        lambda h: llama(_d(h, (576, 1536, 49152)), 4, 9 if h else 4, 3 if h else 2, 64, 2048),
        "llama with n_ctx_train 2048: overflow / capping warnings",
    ),
    "yarn-ctx": (
        lambda h: llama(_d(h, (576, 1536, 49152)), 4, 9 if h else 4, 3 if h else 2, 64, 8192, yarn=(4, 2048)),
        "llama with YaRN metadata (factor 4, original 2048)",
    ),
    "gemma3-4b": (
        lambda h: gemma3(_d(h, (2560, 10240, 262144)), 34, 8 if h else 4, 4, 256, 1024, 131072),
        "5 full + 29 sliding layers, window 1024",
    ),
    "gpt-oss-20b": (
        lambda h: gpt_oss(
            _d(h, (2880, 2880, 201088, {"n_expert": 32, "n_used": 4, "n_ff_exp": 2880})),
            24,
            64 if h else 8,
            8,
            64,
            128,
            131072,
        ),
        "12 full + 12 sliding layers, window 128, MoE",
    ),
    "dsv2-lite-mla": (
        lambda h: deepseek2(
            _d(h, (2048, 10944, 102400, {"n_expert": 64, "n_used": 6, "n_ff_exp": 1408, "n_shared": 2})),
            27,
            16 if h else 4,
            512,
            64,
            128,
            128,
            163840,
        ),
        "MLA latent cache, K only",
    ),
    "dsv2-lite-expanded": (
        lambda h: deepseek2(
            _d(h, (2048, 10944, 102400, {"n_expert": 64, "n_used": 6, "n_ff_exp": 1408, "n_shared": 2})),
            27,
            16,
            512 if h else 32,
            64,
            128,
            128,
            163840,
            mla=False,
        ),
        "same model without the *_mla keys: expanded heads",
    ),
    "dsv32-dsa": (
        lambda h: deepseek2(
            _d(h, (1024, 2048, 129280, {"n_ff_exp": 256})),
            8,
            8 if h else 4,
            512,
            64,
            128,
            128,
            163840,
            arch="deepseek32",
            q_lora=128,
            indexer=(4, 128, 2048),
            dense_lead=3,
        ),
        "DSA: MLA cache + lightning-indexer key cache",
    ),
    "qwen35-9b": (
        lambda h: qwen35(_d(h, (4096, 12288, 248320)), 32, 16 if h else 4, 4, 256, 262144),
        "gated delta net hybrid, 8 attention + 24 recurrent layers",
    ),
    "qwen35-9b-mtp": (
        lambda h: qwen35(_d(h, (4096, 12288, 248320)), 32, 16 if h else 4, 4, 256, 262144, nextn=1),
        "the same with one MTP (nextn) block",
    ),
    "jamba": (
        lambda h: jamba(
            _d(h, (4096, 14336, 65536), tiny=(128, 128)),
            16,
            32 if h else 4,
            8 if h else 2,
            262144,
            dt_rank=256 if h else 8,
        ),
        "Mamba-1 + attention hybrid, head_count_kv array",
    ),
    "mamba2": (lambda h: mamba2(_d(h, (2560, 0, 50288), tiny=(128, 0)), 16, 1048576), "pure recurrent, no KV cache"),
    "gemma4": (
        lambda h: gemma4(
            _d(h, (1536, 6144, 262144)),
            30,
            8 if h else 4,
            1,
            1,
            512,
            256,
            512,
            15,
            131072,
            interval=5,
            per_layer=256 if h else 32,
        ),
        "sliding window, two head sizes, last 15 layers share K/V",
    ),
    "lfm2": (
        lambda h: lfm2(_d(h, (2048, 8192, 65536), tiny=(128, 128)), 16, 32 if h else 8, 8 if h else 4, 128000),
        "short-convolution hybrid",
    ),
    "mimo2": (
        lambda h: mimo2(
            _d(h, (4096, 16384, 152576, {"n_ff_exp": 2048})), 12, 64 if h else 8, 4, 8, 192, 128, 128, 262144
        ),
        "K 192 / V 128 heads, 4 KV heads full, 8 sliding",
    ),
}


# --------------------------------------------------------------------------- writing
def add_kv(w: gguf.GGUFWriter, arch: str, kv: dict):
    for k, v in kv.items():
        key = f"{arch}.{k}"
        if isinstance(v, bool):
            w.add_bool(key, v)
        elif isinstance(v, int):
            w.add_uint32(key, v)
        elif isinstance(v, float):
            w.add_float32(key, v)
        elif isinstance(v, str):
            w.add_string(key, v)
        elif isinstance(v, (list, tuple)):
            w.add_array(key, list(v))
        else:
            raise TypeError(f"{key}: {type(v)}")


def write_model(name: str, path: str, hollow=False, seed=0, overrides=None) -> str:
    m = SPECS[name][0](hollow)
    kv = dict(m.kv)
    for k, v in (overrides or {}).items():
        if v is None:
            kv.pop(k, None)
        else:
            kv[k] = v
    n_vocab = next(s[1] for n, s, _ in m.tensors if n == "token_embd.weight")
    w = gguf.GGUFWriter(path, m.arch, use_temp_file=False)
    w.add_name(f"{'hollow' if hollow else 'tiny'}-{name}")
    w.add_file_type(1)
    add_kv(w, m.arch, kv)
    toks, scores, types = spm_vocab(n_vocab)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(toks)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)

    rng = np.random.default_rng(seed)
    npt = {F32: np.float32, F16: np.float16}
    for tname, ne, typ in m.tensors:
        shape = tuple(reversed(ne))  # numpy order
        n = int(np.prod(shape))
        dt = np.dtype(npt[typ])
        if hollow:
            w.add_tensor_info(tname, shape, dt, n * dt.itemsize)
        elif tname.endswith("norm.weight"):
            w.add_tensor(tname, np.ones(shape, dtype=dt))
        elif tname.endswith("ssm_a"):
            w.add_tensor(tname, -np.exp(rng.uniform(0, 2, shape)).astype(dt))
        else:
            w.add_tensor(tname, (rng.standard_normal(shape, dtype=np.float32) * 0.05).astype(dt))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    if hollow:
        w.write_ti_data_to_file()
        w.close()
        # data section starts at the next alignment boundary; leave it as a hole
        al = 32
        end = (Path(path).stat().st_size + al - 1) // al * al
        for _, ne, typ in m.tensors:
            nb = int(np.prod(ne)) * np.dtype(npt[typ]).itemsize
            end += (nb + al - 1) // al * al
        os.truncate(path, end)
    else:
        w.write_tensors_to_file()
        w.close()
    return path
