"""The model as facts: what its files say (``ModelSource``), and what that means for a cache (``Model``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .base import Fact

Origin = Literal["folder", "file", "hub", "hub cache", "catalogue", "url", "ollama", "log"]


Natural = Annotated[int, Meta(ge=0)]
"""A case that tells a number below 0 here is refused where it is read."""


class TensorGroup(Struct, frozen=True, kw_only=True):
    """Bytes of the tensors that belong together, summed from file headers.

    ``layer`` is the decoder layer they belong to, None for what belongs to none. ``kind`` is one of ``embedding``,
    ``output``, ``attention``, ``mlp``, ``experts``, ``shared experts``, ``router``, ``state``, ``norm``, ``vision``,
    ``audio``, ``mtp``, ``indexer``, ``other``.
    """

    kind: str
    bytes: Natural
    elements: Natural
    layer: Natural | None = None
    dtype: str | None = None
    parts: int | None = None
    """Among how many ranks tensor parallel can divide them at most, beyond which ranks hold copies: 1 for what every
    rank holds whole (norms, routers, MLA's down projections), the KV heads for key and value projections, None: any."""
    file: Natural = 0
    """Which of the model's files holds them, by its place in ``ModelSource.files``."""
    start: Natural | None = None
    end: Natural | None = None
    """Where in that file the first of them starts and the last ends (GGUF): a memory-mapped buffer is such a range."""


class TokenizerFacts(Struct, frozen=True, kw_only=True):
    """What the tokenizer files say, without loading a tokenizer."""

    kind: str | None = None
    vocabulary: int | None = None
    model_max_length: float | None = None
    chat_template: bool | None = None
    pre_tokenizer: str | None = None
    fingerprint: str | None = None
    """SHA-256 of the vocabulary file: equal fingerprints mean that two models share their vocabulary."""
    file: str | None = None
    """The file that holds the vocabulary."""


class ModelFile(Struct, frozen=True, kw_only=True):
    """One file of the model as it stands on disk or on the hub."""

    name: str
    bytes: int
    expected_bytes: int | None = None
    """What its own header or index says it must have; shorter means truncated."""
    problem: str | None = None
    """``missing``, ``truncated``, ``lfs pointer``, ``unreadable: ...``, ``no weights...`` (a folder), or None."""


class ModelSource(Fact, frozen=True, kw_only=True):
    """Everything read from a model's files, uninterpreted, so that a later doctor can read it better.

    ``config`` is config.json as parsed; ``gguf`` the metadata of a GGUF header without long arrays (a long one is
    given as ``{"array": type, "length": n}``), ``gguf_tensors`` what tensors it holds.
    """

    name: str
    origin: Origin
    where: str
    config: dict[str, Any] | None = None
    generation_config: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    """From a separate file (hf_quant_config.json); config.json's own stays in ``config``."""
    gguf: dict[str, Any] | None = None
    gguf_version: int | None = None
    gguf_tensors: tuple[TensorGroup, ...] = ()
    gguf_tensor_names: tuple[str, ...] = ()
    """Names of the tensors of the first, the last and any layer whose name set differs: enough to tell layouts."""
    weights: tuple[TensorGroup, ...] = ()
    weight_bytes: int | None = None
    """Bytes of all tensors, exact from headers; None where no header could be read."""
    weight_format: str | None = None
    files: tuple[ModelFile, ...] = ()
    tokenizer: TokenizerFacts = TokenizerFacts()
    revision: str | None = None
    unrecorded: tuple[str, ...] = ()
    """Keys that the model's config.json has but this source does not tell (catalogue): unknown, not absent."""
    notes: tuple[str, ...] = ()


class LayerCache(Struct, frozen=True, kw_only=True, tag_field="cache", tag=str.lower):
    """What one layer keeps per conversation. The one abstraction that every runtime's arithmetic starts from."""


class Full(LayerCache, frozen=True, kw_only=True):
    """Keys and values of every token: ``kv_heads`` heads of ``key_dim`` and ``value_dim`` elements."""

    kv_heads: int
    key_dim: int
    value_dim: int


class SlidingWindow(LayerCache, frozen=True, kw_only=True):
    """Keys and values of the last ``window`` tokens."""

    window: int
    kv_heads: int
    key_dim: int
    value_dim: int


class ChunkedLocal(LayerCache, frozen=True, kw_only=True):
    """Keys and values of the tokens of the current chunk (Llama 4)."""

    chunk: int
    kv_heads: int
    key_dim: int
    value_dim: int


class Latent(LayerCache, frozen=True, kw_only=True):
    """One compressed vector a token (MLA): ``rank`` elements and ``rope_dim`` more, not split by tensor parallel.

    ``heads``, ``key_dim`` and ``value_dim`` are what it expands to in a runtime (or a file) that stores it expanded.
    ``sparse`` marks DeepSeek sparse attention, which keeps an ``Indexer`` beside it.
    """

    rank: int
    rope_dim: int
    heads: int
    key_dim: int
    value_dim: int
    sparse: bool = False


class State(LayerCache, frozen=True, kw_only=True):
    """A state of fixed size, whatever the length.

    ``shapes`` are the state tensors for tensor parallel size 1, first the convolution's (channels, taps) where there is
    one, then the recurrent one's. Parameters that a split or a runtime needs stay named in ``parameters``.
    """

    kind: Literal["gdn", "mamba1", "mamba2", "kda", "linear", "short_conv", "rwkv"]
    shapes: tuple[tuple[int, ...], ...]
    parameters: dict[str, int] = {}


class Indexer(LayerCache, frozen=True, kw_only=True):
    """Keys of a sparse-attention indexer beside the layer's own cache: ``heads`` of ``key_dim`` elements a token."""

    key_dim: int
    heads: int = 1


class SharedWith(LayerCache, frozen=True, kw_only=True):
    """Reads the cache of another layer and owns none."""

    layer: int


class Cross(LayerCache, frozen=True, kw_only=True):
    """Keys and values of the encoder's output (Whisper): as long as the encoder input, not the conversation."""

    kv_heads: int
    key_dim: int
    value_dim: int
    encoder_tokens: int


class Compressed(LayerCache, frozen=True, kw_only=True):
    """A window of latent vectors, behind it one vector for every ``ratio`` tokens (DeepSeek V4); 0: the window only.

    ``dim`` elements a vector, for keys and values together; ``index_dim`` those of the indexer beside it, 0 for none.
    """

    window: int
    ratio: int
    dim: int
    index_dim: int = 0


class Nothing(LayerCache, frozen=True, kw_only=True):
    """Keeps nothing (an MLP-only block)."""


AnyCache = Full | SlidingWindow | ChunkedLocal | Latent | State | Indexer | SharedWith | Cross | Compressed | Nothing


class Layer(Struct, frozen=True, kw_only=True):
    """One decoder layer and what it keeps; most keep one thing, Falcon-H1 attention and a state, DSA an indexer too."""

    caches: tuple[AnyCache, ...]


class QuantizedPart(Struct, frozen=True, kw_only=True):
    """Modules that are stored in one way, by the ends of their names (``mlp.down_proj``); ``Linear`` means all."""

    modules: tuple[str, ...]
    bits: float
    group_size: int | None = None
    block: tuple[int, int] | None = None
    format: str | None = None


class Quantization(Struct, frozen=True, kw_only=True):
    """How the weights are stored. ``kv_cache`` is the KV dtype that the checkpoint itself asks for."""

    method: str
    bits: float | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    kv_cache: str | None = None
    excluded: tuple[str, ...] = ()
    format: str | None = None
    """How compressed-tensors packs it: ``pack-quantized``, ``nvfp4-pack-quantized``, ``float-quantized``, ..."""
    parts: tuple[QuantizedPart, ...] = ()
    """Where groups of modules are stored in different ways, each of them; ``bits`` is then that of the first."""


class Model(Fact, frozen=True, kw_only=True):
    """What matters of a model whatever file it came from. Derived from ``ModelSource`` by ``models.describe``."""

    name: str
    origin: Origin
    architecture: str
    """Hugging Face class name, or GGUF architecture where only a GGUF file was read."""
    model_type: str
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...] = ()
    """Multi-token-prediction layers that only speculative decoding loads."""
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate_size: int | None = None
    vocabulary: int
    training_length: int | None
    """Context length the model was trained for, after rope scaling; a runtime may derive another."""
    dtype: str
    quantization: Quantization | None = None
    tied_embeddings: bool = False
    multimodal: bool = False
    encoder_decoder: bool = False
    pooling: bool = False
    weights: tuple[TensorGroup, ...] = ()
    weight_bytes: int | None = None
    """Exact when summed from headers; None where it must be computed from the config."""
    filled: tuple[str, ...] = ()
    """Keys that config.json leaves out and transformers fills in, as ``key=value``."""
    source: ModelSource
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """config.json as parsed, empty for a GGUF file."""
        return self.source.config or {}

    @property
    def text_config(self) -> dict[str, Any]:
        """config.json with the keys of its ``text_config``, where it has one, over its own."""
        text = self.config.get("text_config")
        return {**self.config, **text} if isinstance(text, dict) else self.config


class DraftSource(Fact, frozen=True, kw_only=True):
    """The draft model of speculative decoding, read the same way as the target."""

    source: ModelSource


class Draft(Fact, frozen=True, kw_only=True):
    """The draft model, understood. Derived from ``DraftSource``."""

    model: Model
