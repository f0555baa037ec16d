"""More tiny GGUF models that really load in llama-server: kinds of cache that make_gguf.py has not.

Importing this module adds them to ``make_gguf.SPECS``. Tensors: ``load_arch_tensors`` of src/models, llama.cpp b10434.
"""

from __future__ import annotations

from make_gguf import F16, F32, MOE, SPECS, Dims, Model, _common, _emb, _ffn, _norm, _qkvo


def _layer(i, *tensors):
    """Tensors of one layer: (name, shape), f32 where one-dimensional or a norm, f16 else."""
    small = ("ssm_conv", "ssm_a", "ssm_d")
    return [
        (f"blk.{i}.{name}", shape, F32 if len(shape) == 1 or name.startswith(small) else F16) for name, shape in tensors
    ]


def cohere2(d, n_layer, n_head, n_kv, window, ctx):
    hd = d.n_embd // n_head
    kv = _common("cohere2", d, n_layer, ctx, n_head, n_kv, hd)
    kv.update({"attention.sliding_window": window, "logit_scale": 0.25, "attention.layer_norm_epsilon": 1e-5})
    t = _emb(d)
    for i in range(n_layer):
        t.append(_norm(i, "attn_norm", d.n_embd))
        t += _qkvo(i, d, d.n_embd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("cohere2", kv, t)


def gemma2(d, n_layer, n_head, n_kv, hd, window, ctx):
    kv = _common("gemma2", d, n_layer, ctx, n_head, n_kv, hd)
    kv["attention.sliding_window"] = window
    t = _emb(d)
    for i in range(n_layer):
        t += [_norm(i, name, d.n_embd) for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")]
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("gemma2", kv, t)


def olmo2(d, n_layer, n_head, n_kv, window, ctx):
    hd = d.n_embd // n_head
    kv = _common("olmo2", d, n_layer, ctx, n_head, n_kv, hd)
    if window:
        kv["attention.sliding_window"] = window
    t = _emb(d, untied=True)
    for i in range(n_layer):
        t += _qkvo(i, d, d.n_embd, n_kv * hd, n_kv * hd) + _ffn(i, d)
        t += [_norm(i, "attn_q_norm", d.n_embd), _norm(i, "attn_k_norm", n_kv * hd)]
        t += [_norm(i, "post_attention_norm", d.n_embd), _norm(i, "post_ffw_norm", d.n_embd)]
    return Model("olmo2", kv, t)


def _ssm_keys(conv, inner, state, groups, heads):
    return {
        "ssm.conv_kernel": conv,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.group_count": groups,
        "ssm.time_step_rank": heads,
    }


def _mamba2_layer(i, d, conv, inner, state, groups, heads):
    width = inner + 2 * groups * state
    tensors = _layer(
        i,
        ("ssm_in.weight", (d.n_embd, inner + width + heads)),
        ("ssm_conv1d.weight", (conv, width)),
        ("ssm_conv1d.bias", (width,)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (1, heads)),
        ("ssm_d", (1, heads)),
        ("ssm_out.weight", (inner, d.n_embd)),
    )
    tensors.append((f"blk.{i}.ssm_norm.weight", (inner // groups, groups), F32))
    return tensors


def falcon_h1(d, n_layer, n_head, n_kv, hd, ctx, inner=128, state=32, groups=1, heads=4, conv=4):
    """Attention and a Mamba-2 state in every layer."""
    kv = _common("falcon-h1", d, n_layer, ctx, n_head, n_kv, hd) | _ssm_keys(conv, inner, state, groups, heads)
    t = _emb(d)
    for i in range(n_layer):
        t += [_norm(i, "attn_norm", d.n_embd), (f"blk.{i}.ffn_norm", (d.n_embd,), F32)]
        t += _mamba2_layer(i, d, conv, inner, state, groups, heads)
        t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd) + _ffn(i, d)
    return Model("falcon-h1", kv, t)


def nemotron_h(d, pattern, n_head, n_kv, hd, ctx, inner=128, state=32, groups=2, heads=4, conv=4):
    """M: Mamba-2, *: attention, -: feed-forward; told apart by head_count_kv and feed_forward_length."""
    n_layer = len(pattern)
    kv = _common("nemotron_h", d, n_layer, ctx, n_head, [n_kv if p == "*" else 0 for p in pattern], hd)
    kv["feed_forward_length"] = [d.n_ff if p == "-" else 0 for p in pattern]
    kv["attention.layer_norm_epsilon"] = 1e-5
    kv |= _ssm_keys(conv, inner, state, groups, heads)
    t = _emb(d)
    for i, kind in enumerate(pattern):
        t.append(_norm(i, "attn_norm", d.n_embd))
        if kind == "M":
            t += _mamba2_layer(i, d, conv, inner, state, groups, heads)
        elif kind == "*":
            t += _qkvo(i, d, n_head * hd, n_kv * hd, n_kv * hd)
        else:
            t += _layer(i, ("ffn_up.weight", (d.n_embd, d.n_ff)), ("ffn_down.weight", (d.n_ff, d.n_embd)))
    return Model("nemotron_h", kv, t)


def granite_hybrid(d, n_layer, n_head, n_kv, ctx, attending=(5, 11), inner=256, state=32, groups=1, heads=4, conv=4):
    hd = d.n_embd // n_head
    arr = [n_kv if i in attending else 0 for i in range(n_layer)]
    kv = _common("granitehybrid", d, n_layer, ctx, n_head, arr, hd) | _ssm_keys(conv, inner, state, groups, heads)
    t = _emb(d)
    for i in range(n_layer):
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        if arr[i]:
            t += _qkvo(i, d, d.n_embd, n_kv * hd, n_kv * hd)
        else:
            t += _mamba2_layer(i, d, conv, inner, state, groups, heads)
        t += _ffn(i, d)
    return Model("granitehybrid", kv, t)


def kimi_linear(d, n_layer, n_head, kv_lora, rope, nope, v, kda, ctx, every=4, conv=4):
    """Three KDA layers, then one of latent attention."""
    ne, nu, fe = d.extra["n_expert"], d.extra["n_used"], d.extra["n_ff_exp"]
    arr = [1 if (i + 1) % every == 0 else 0 for i in range(n_layer)]
    kv = _common("kimi-linear", d, n_layer, ctx, n_head, arr, kv_lora + rope, kv_lora, rope_dim=rope)
    kv |= {
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": v,
        "attention.kv_lora_rank": kv_lora,
        "ssm.conv_kernel": conv,
        "kda.head_dim": kda,
        "expert_count": ne,
        "expert_used_count": nu,
        "expert_shared_count": 1,
        "expert_feed_forward_length": fe,
        "expert_gating_func": 2,
        "leading_dense_block_count": n_layer,
    }
    t = _emb(d, untied=True)
    width = kda * n_head
    for i in range(n_layer):
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd)]
        if arr[i]:
            t += [_norm(i, "attn_kv_a_norm", kv_lora)]
            t += _layer(
                i,
                ("attn_q.weight", (d.n_embd, n_head * (nope + rope))),
                ("attn_kv_a_mqa.weight", (d.n_embd, kv_lora + rope)),
                ("attn_k_b.weight", (nope, kv_lora, n_head)),
                ("attn_v_b.weight", (kv_lora, v, n_head)),
                ("attn_output.weight", (n_head * v, d.n_embd)),
            )
        else:
            t += [(f"blk.{i}.ssm_conv1d_{name}.weight", (conv, 1, width), F32) for name in "qkv"]
            t += _qkvo(i, d, width, width, width)
            t += _layer(
                i,
                ("ssm_f_a.weight", (d.n_embd, kda)),
                ("ssm_f_b.weight", (kda, width)),
                ("ssm_beta.weight", (d.n_embd, n_head)),
                ("ssm_a", (1, n_head)),
                ("ssm_dt.bias", (width,)),
                ("ssm_g_a.weight", (d.n_embd, kda)),
                ("ssm_g_b.weight", (kda, width)),
                ("ssm_norm.weight", (kda,)),
            )
        t += _ffn(i, d)
    return Model("kimi-linear", kv, t)


def deepseek4(d, ratios, n_head, hd, window, ctx, index=(4, 128, 512), q_lora=32, groups=2, o_lora=16, hc=4):
    """A window of latent vectors, behind it vectors compressed by 4 or 128, and an indexer."""
    ne, nu, fe = d.extra["n_expert"], d.extra["n_used"], d.extra["n_ff_exp"]
    n_layer = len(ratios)
    index_heads, index_dim, top_k = index
    kv = _common("deepseek4", d, n_layer, ctx, n_head, 1, hd, rope_dim=64)
    kv |= {
        "attention.q_lora_rank": q_lora,
        "attention.sliding_window": window,
        "expert_count": ne,
        "expert_used_count": nu,
        "expert_feed_forward_length": fe,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [10.0] * n_layer,
        "attention.indexer.head_count": index_heads,
        "attention.indexer.key_length": index_dim,
        "attention.indexer.top_k": top_k,
        "attention.output_group_count": groups,
        "attention.output_lora_rank": o_lora,
        "attention.compress_rope_freq_base": 160000.0,
        "attention.compress_ratios": list(ratios),
        "hyper_connection.count": hc,
        "hyper_connection.sinkhorn_iterations": 4,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
    }
    wide, mix = hc * d.n_embd, (2 + hc) * hc
    t = _emb(d, untied=True)
    t += [("output_hc_fn.weight", (wide, hc), F32), ("output_hc_base.weight", (hc,), F32),
          ("output_hc_scale.weight", (1,), F32)]  # fmt: skip
    for i, ratio in enumerate(ratios):
        t += [_norm(i, "attn_norm", d.n_embd), _norm(i, "ffn_norm", d.n_embd), _norm(i, "attn_q_a_norm", q_lora)]
        t += [_norm(i, "attn_kv_a_norm", hd)]
        t += _layer(
            i,
            ("attn_sinks.weight", (n_head,)),
            ("attn_q_a.weight", (d.n_embd, q_lora)),
            ("attn_q_b.weight", (q_lora, n_head * hd)),
            ("attn_kv.weight", (d.n_embd, hd)),
            ("attn_output_a.weight", (n_head * hd // groups, o_lora, groups)),
            ("attn_output_b.weight", (groups * o_lora, d.n_embd)),
            ("ffn_gate_exps.weight", (d.n_embd, fe, ne)),
            ("ffn_down_exps.weight", (fe, d.n_embd, ne)),
            ("ffn_up_exps.weight", (d.n_embd, fe, ne)),
            ("ffn_gate_shexp.weight", (d.n_embd, fe)),
            ("ffn_down_shexp.weight", (fe, d.n_embd)),
            ("ffn_up_shexp.weight", (d.n_embd, fe)),
            ("exp_probs_b.bias", (ne,)),
        )
        t.append((f"blk.{i}.ffn_gate_inp.weight", (d.n_embd, ne), F32))
        for part in ("attn", "ffn"):
            t += [(f"blk.{i}.hc_{part}_fn.weight", (wide, mix), F32), (f"blk.{i}.hc_{part}_base.weight", (mix,), F32),
                  (f"blk.{i}.hc_{part}_scale.weight", (3,), F32)]  # fmt: skip
        if ratio:
            times = 2 if ratio == 4 else 1
            t += _layer(
                i,
                ("attn_compressor_kv.weight", (d.n_embd, times * hd)),
                ("attn_compressor_gate.weight", (d.n_embd, times * hd)),
            )
            t += [(f"blk.{i}.attn_compressor_ape.weight", (times * hd, ratio), F32),
                  _norm(i, "attn_compressor_norm", hd)]  # fmt: skip
        if ratio == 4:
            t += _layer(
                i,
                ("indexer.proj.weight", (d.n_embd, index_heads)),
                ("indexer.attn_q_b.weight", (q_lora, index_heads * index_dim)),
                ("indexer_compressor_kv.weight", (d.n_embd, 2 * index_dim)),
                ("indexer_compressor_gate.weight", (d.n_embd, 2 * index_dim)),
            )
            t += [(f"blk.{i}.indexer_compressor_ape.weight", (2 * index_dim, ratio), F32),
                  _norm(i, "indexer_compressor_norm", index_dim)]  # fmt: skip
    return Model("deepseek4", kv, t)


def _tiny(n_embd=32, n_ff=32):
    return Dims(n_embd, n_ff, 512, dict(MOE))


MORE = {
    "cohere2": (lambda h: cohere2(_tiny(128), 8, 4, 2, 512, 16384), "one full layer in four"),
    "gemma2": (lambda h: gemma2(_tiny(), 6, 4, 2, 64, 1024, 8192), "every other layer slides"),
    "olmo3": (lambda h: olmo2(_tiny(128), 8, 4, 2, 512, 16384), "olmo2 with a window"),
    "olmo2": (lambda h: olmo2(_tiny(128), 8, 4, 4, 0, 4096), "without"),
    "falcon-h1": (lambda h: falcon_h1(_tiny(64), 6, 4, 2, 32, 16384), "attention and state in each layer"),
    "nemotron-h": (lambda h: nemotron_h(_tiny(64), "M-M*-M-M*-", 4, 2, 32, 8192), "three kinds of layers"),
    "granite-h": (lambda h: granite_hybrid(_tiny(128), 12, 4, 2, 8192), "two of twelve layers attend"),
    "kimi-linear": (lambda h: kimi_linear(_tiny(64), 8, 4, 64, 32, 32, 32, 32, 16384), "KDA and latent attention"),
    "deepseek4": (lambda h: deepseek4(_tiny(128), [0, 0, 4, 128, 4, 128, 4, 0], 4, 128, 128, 65536), "compressed"),
}
SPECS.update(MORE)
