"""Public failure reports as facts: what a check would have seen before the start, by the report's id.

The reports stand in ``tests/data/failure-reports.jsonl`` with the conditions judged to be behind them. Left out are
those whose cause no fact before a start shows (kernel regressions, races, engines of other stacks).
"""

from __future__ import annotations

from llmdoctor_core.facts import (
    AnnotationUse,
    ArgumentProblem,
    CacheDirectory,
    CudaToolkits,
    Draft,
    Environment,
    Fact,
    Full,
    GpuProcess,
    ImportAnnotations,
    JitCompiler,
    Latent,
    Layer,
    Link,
    Links,
    ModelFile,
    Mount,
    NativeLibrary,
    Network,
    NvidiaDriver,
    Port,
    Quantization,
    Refusal,
    TokenizerFacts,
    Toolkit,
    Unavailable,
)

from .building import (
    GIB,
    cache,
    container,
    device,
    distribution,
    estimate,
    forecast,
    gguf,
    gpus,
    launch,
    llama,
    model,
    request,
    source,
    system,
    t4,
    target,
)
from .cases import FLASHINFER, HYBRID, LLAMA_CACHE, PCIE, TP2, TWO, home


def flashinfer(version: str) -> Fact:
    return target(distribution("flashinfer-python", version), distribution("vllm", "0.29.0"))


def nvcc(version: str, **more: object) -> JitCompiler:
    fields = {"nvcc": "/usr/local/cuda/bin/nvcc", "cuda_home": "/usr/local/cuda", "chosen_by": "/usr/local/cuda"} | more
    return JitCompiler(version=version, **fields)  # type: ignore[arg-type]


def lacks(*parts: str) -> tuple[Fact, ...]:
    engine = target(FLASHINFER, distribution("vllm", "0.11.0"), distribution("triton", "3.5.0"))
    return (nvcc("12.8", lacks=parts), engine, request(version="0.11.0"))


def unresolved(*names: str) -> tuple[Fact, ...]:
    return (target(native=(NativeLibrary(path="lib.so", distribution="package", unresolved=names),)),)


def no_template() -> tuple[Fact, ...]:
    return (source(tokenizer=TokenizerFacts(chat_template=False)), launch())


def pointer(problem: str = "a git-lfs pointer", **more: int) -> tuple[Fact, ...]:
    return (source(files=(ModelFile(name="model-00001.safetensors", bytes=130, problem=problem, **more),)),)


def fabric() -> tuple[Fact, ...]:
    return (gpus(8, name="NVIDIA H100 80GB HBM3", fabric_state="in progress"), Links(pairs=(), nvswitch=True))


def low_shm() -> tuple[Fact, ...]:
    return (container(shm=Mount(path="/dev/shm", size=64 << 20, free=60 << 20)), TP2, request())


def no_gpus_in_container(runtime: str = "vllm") -> tuple[Fact, ...]:
    return (container(devices=()), request(runtime))


def no_name() -> tuple[Fact, ...]:
    return (Environment(variables={}), system(has_passwd_entry=False, uid=12345))


def heads(count: int, ranks: int, kv: int | None = None) -> tuple[Fact, ...]:
    layer = Layer(caches=(Full(kv_heads=kv or count, key_dim=128, value_dim=128),))
    return (launch(tensor_parallel_size=ranks), model(heads=count, layers=(layer,) * 4))


def awq(width: int, ranks: int, group: int = 128, **more: object) -> tuple[Fact, ...]:
    quantized = Quantization(method="awq", bits=4, group_size=group)
    return (launch(tensor_parallel_size=ranks), model(intermediate_size=width, quantization=quantized, **more))


def acs() -> tuple[Fact, ...]:
    return (TWO, PCIE, TP2, system(iommu="on", acs=True))


def other_vocabulary() -> tuple[Fact, ...]:
    return (
        launch(speculative_config={"model": "draft", "method": "draft_model"}),
        model(vocabulary=152064),
        Draft(model=model()),
    )


def typed(kind: str, saved: str, installed: str) -> tuple[Fact, ...]:
    config = {"model_type": kind, "transformers_version": saved}
    environment = target(distribution("vllm", "0.6.5"), distribution("transformers", installed))
    return (environment, model(source=source(config=config)), request())


def fp8_on(name: str, capability: tuple[int, int], method: str = "fp8", **version: str) -> tuple[Fact, ...]:
    stored = Quantization(method=method, bits=8)
    return (gpus(name=name, compute_capability=capability), launch(**version), model(quantization=stored))  # type: ignore[arg-type]


def old_driver(version: str) -> tuple[Fact, ...]:
    return (NvidiaDriver(version=version), target(distribution("torch", "2.11.0")))


def built_without(capability: tuple[int, int]) -> tuple[Fact, ...]:
    return (gpus(compute_capability=capability), target(distribution("torch", "2.11.0")))


def compat_first(driver: str, offered: str, name: str = "NVIDIA H20") -> tuple[Fact, ...]:
    found = container(libcuda=("/usr/local/cuda/compat/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
    return (NvidiaDriver(version=driver, kernel_module_version=driver, cuda_version=offered), found, gpus(name=name))


def taken_port() -> tuple[Fact, ...]:
    return (Network(ports=(Port(port=8000, host="0.0.0.0", free=False),)),)


def wsl() -> tuple[Fact, ...]:
    return (system(wsl=True, kernel="5.15-microsoft"), launch(cpu_offload_gb=4), request())


def jobs() -> tuple[Fact, ...]:
    environment = target(distribution("flashinfer-python", "0.6.12"))
    return (model(experts=128), environment, system(cpus=20, memory_available=30 * GIB), request())


def hugging_face(reason: str) -> tuple[Fact, ...]:
    return (Unavailable(reason=reason), request(model="meta-llama/Llama-2-7b-hf"))


def fits_not(**fields: object) -> tuple[Fact, ...]:
    return (launch(), forecast(memory=(device(**fields),)))  # type: ignore[arg-type]


def connector(name: str, version: str = "0.32.0", *packages: str) -> tuple[Fact, ...]:
    config = {"kv_connector": name, "kv_role": "kv_both"}
    installed = target(*(distribution(package, "1.0") for package in packages))
    return (launch(version=version, kv_transfer_config=config), installed, request())


VOLTA = gpus(name="Tesla V100-SXM2-32GB", compute_capability=(7, 0))
AWQ = Quantization(method="awq", bits=4, group_size=128)
PACKED = Quantization(method="compressed-tensors", bits=4, format="pack-quantized")
SPARSE_LATENT = model(
    layers=(Layer(caches=(Latent(rank=512, rope_dim=64, heads=128, key_dim=192, value_dim=128, sparse=True),)),) * 4
)

REPORTS: dict[str, tuple[Fact, ...]] = {
    "chat-tmpl-base": no_template(),
    "chat-tmpl-dsv32": no_template(),
    "chat-tmpl-gemma4": no_template(),
    "st-truncated-airllm": pointer("truncated", expected_bytes=GIB),
    "lfs-pointer-dsv3": pointer(),
    "lfs-pointer-mft": pointer(),
    "lmc-env-prefix": (request(environment={"LM_CACHE_LOCAL_DEVICE": "cpu", "LM_CACHE_MAX_LOCAL_CACHE_SIZE": "5"}),),
    "lmc-zero-size": (
        launch(
            kv_transfer_config={"kv_connector": "LMCacheConnectorV1"}, environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "0"}
        ),
    ),
    "driver-535-cuda128-doc": old_driver("535.183.06"),
    "wheels129-30633": old_driver("535.161.07"),
    "nccl-driver-12020": old_driver("535.54.03"),
    "err803-gpustack": compat_first("580.95.05", "12.9"),
    "err803-llmd": compat_first("580.95.05", "12.9"),
    "err804-consumer": compat_first("525.60.13", "12.4", "NVIDIA GeForce RTX 4090"),
    "err804-v043": compat_first("535.171.04", "12.4", "NVIDIA GeForce RTX 3090"),
    "bf16-v100": (gpus(name="Tesla V100-SXM2-32GB", compute_capability=(7, 0)), launch(), model()),
    "bf16-t4": (t4(), launch(), model()),
    "fabric-dlami": fabric(),
    "fabric-802-ollama": fabric(),
    "fabric-b200": fabric(),
    "fabric-hfjobs": fabric(),
    "fabric-mismatch": fabric(),
    "sm120-cuda128": (nvcc("12.8"), flashinfer("0.6.18"), gpus(compute_capability=(12, 0)), request(version="0.30.0")),
    "fi-sm120-gate": (nvcc("12.8"), flashinfer("0.6.18"), gpus(compute_capability=(12, 0)), request(version="0.30.0")),
    "sm120-disable-pr": (
        nvcc("12.8"),
        flashinfer("0.7.0.post1"),
        gpus(compute_capability=(12, 0)),
        request(version="0.31.0"),
    ),
    "cuda-home-colon": (
        nvcc("12.8", cuda_home=":/usr/local/cuda-12.8"),
        CudaToolkits(toolkits=(), variables={"CUDA_HOME": ":/usr/local/cuda-12.8"}),
        flashinfer("0.6.4"),
    ),
    "cuda133-headers": (
        nvcc("13.3", cuda_home="/opt/venv/nvidia/cu13"),
        CudaToolkits(
            toolkits=(
                Toolkit(path="/opt/venv/nvidia/cu13", origin="CUDA_HOME", nvcc_version="13.3", header_version="13.0"),
            )
        ),
        flashinfer("0.6.12"),
    ),
    "fi-hpc-cuda126": (nvcc("12.6"), CudaToolkits(toolkits=()), flashinfer("0.6.4")),
    "fi-compress-mode": (nvcc("12.4"), flashinfer("0.6.18"), request(version="0.29.0")),
    "fi-compress-mode-pr": (nvcc("12.4"), flashinfer("0.6.18"), request(version="0.29.0")),
    "fi-fp4-flag-drop": (
        nvcc("12.4"),
        flashinfer("0.6.18"),
        request(version="0.29.0"),
        model(quantization=Quantization(method="mxfp4")),
    ),
    "fi-no-nvcc-2_9rc2": (nvcc("12.8", exists=False), flashinfer("0.2.9rc2"), request(version="0.10.0")),
    "fi-nvcc-040": (nvcc("", nvcc=None, cuda_home=None), flashinfer("0.4.0"), request(version="0.10.2")),
    "fi-sampler-no-fallback": (nvcc("", nvcc=None, cuda_home=None), flashinfer("0.6.14"), request(version="0.26.0")),
    "kaito-v100-t4-nvcc": (nvcc("", nvcc=None, cuda_home=None), flashinfer("0.6.14"), request(version="0.26.0")),
    "lmcache-ninja-path": (
        nvcc("12.8", lacks=("ninja",), off_path={"ninja": "/opt/venv/bin/ninja"}),
        flashinfer("0.3.1"),
        request(version="0.25.0"),
    ),
    "nvfp4-curand": lacks("curand.h"),
    "cc-missing-vllm": lacks("cc"),
    "cc-missing-vllm-v1": lacks("cc"),
    "cc-missing-sgl": lacks("cc"),
    "python-h-vllm": lacks("Python.h"),
    "python-h-sglang": lacks("Python.h"),
    "sglang-ci-pythondev": lacks("Python.h"),
    "ld-lcuda-vllm": lacks("libcuda.so"),
    "gcc13-instructlab": (nvcc("12.5", host_compiler="gcc", host_compiler_version="14.1"), flashinfer("0.6.4")),
    "mineru-spark": (target(distribution("triton", "3.5.1")), gpus(compute_capability=(12, 1))),
    "ptxas-sm121-gpustack": (target(distribution("triton", "3.5.0")), gpus(compute_capability=(12, 1))),
    "cubin-dropped": (target(distribution("flashinfer-python", "0.6.14"), distribution("flashinfer-cubin", "0.6.13")),),
    "ecc-ollama": (gpus(ecc_uncorrected=1),),
    "ecc-a100": (gpus(ecc_uncorrected=4),),
    "gpu-err-state": (gpus(8, lost="GPU is lost"),),
    "xid79-h2ogpt": (gpus(4, xid=(79,)),),
    "gpu-orphan-trap": (gpus(processes=(GpuProcess(pid=99, name="VLLM::EngineCore", memory=70 * GIB),)),),
    "gpu-orphan-42017": (gpus(processes=(GpuProcess(pid=99, name="VLLM::Worker_TP0", memory=70 * GIB),)),),
    "mig-uuid": (gpus(mig_parent="GPU-p", host={"visible_devices": "MIG-1234"}), launch(version="0.20.1")),
    "uuid-pydantic": (gpus(host={"visible_devices": "GPU-0"}), launch(version="0.9.2")),
    "mixed-gpus": (gpus(2, host={"order_uncertain": "models differ and CUDA_DEVICE_ORDER is not set"}),),
    "tp16-nemo-1059": (launch(version="0.11.2", tensor_parallel_size=16), gpus(8)),
    "world-size-15217": (launch(version="0.8.5", tensor_parallel_size=2), gpus(1)),
    "localworld-28873": (launch(version="0.11.1", tensor_parallel_size=16), gpus(8)),
    "hugepages-34972": (system(hugepages_free=60000),),
    "mamba-blocks-kaito": (
        launch(version="0.25.1", max_num_seqs=1024),
        HYBRID,
        forecast(cache=cache(blocks=614, certainty=estimate(600, 640))),
    ),
    "mamba-blocks-home": (launch(version="0.26.0", max_num_seqs=256), HYBRID, forecast(cache=cache(blocks=95))),
    "jitmem-3634": jobs(),
    "jitmem-3636": jobs(),
    "jitmem-ci-3030": jobs(),
    "kv-too-small-llama4": (launch(), forecast(cache=cache(blocks=900, bytes=9 * GIB, request_tokens=1 << 20))),
    "glibc-41103": (
        target(native=(NativeLibrary(path="vllm/_C.so", symbol_versions={"GLIBC": "2.34"}),)),
        system(glibc="2.31"),
    ),
    "glibc-llamacpp-1840": (
        target(native=(NativeLibrary(path="libggml.so", symbol_versions={"GLIBC": "2.34"}),)),
        system(glibc="2.31"),
    ),
    "glibcxx-llmd-445": (
        target(native=(NativeLibrary(path="fs.so", symbol_versions={"GLIBCXX": "3.4.30"}),)),
        system(libstdcxx="3.4.29"),
    ),
    "ctx-auto-slots": (
        llama("b9265", ctx_size=1024, parallel=-1),
        forecast(cache=cache(blocks=None, tokens=1024, slot_tokens=1024)),
    ),
    "ctx-lemonade": (llama(ctx_size=8192, parallel=-1), forecast(cache=LLAMA_CACHE)),
    "ctx-parallel-11681": (
        llama("b4621", ctx_size=163840, parallel=6),
        forecast(cache=cache(blocks=None, tokens=163840, slot_tokens=27306)),
    ),
    "fa-vcache-28524": (request("llamacpp"), llama(cache_type_v="q4_0"), forecast(), gpus()),
    "fa-vcache-10378": (
        request("llamacpp"),
        llama(cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="off"),
        forecast(refused=Refusal(code="GGUF508", message="V cache quantization requires flash_attn")),
    ),
    "fa-vcache-ollama": (request("ollama", environment={"OLLAMA_KV_CACHE_TYPE": "q8_0"}),),
    "lcpp-fit-ctx": (
        request("llamacpp"),
        llama(ctx_size=0, default=("ctx_size",)),
        model(),
        forecast(cache=LLAMA_CACHE),
    ),
    "ollama-ctx-14082": (request("ollama"), gpus(memory_total=32 * GIB)),
    "maxlen-yi": (launch(max_model_len=200000), model(training_length=4096)),
    "maxlen-warn-pr": (launch(max_model_len=200000, environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}), model()),
    "free-mem-util-0_9": (
        gpus(memory_total=int(22.05 * GIB), memory_free=int(19.77 * GIB)),
        launch(gpu_memory_utilization=0.9),
    ),
    "free-club-544": (gpus(memory_total=24 * GIB, memory_free=int(22.7 * GIB)), launch(gpu_memory_utilization=0.95)),
    "trc-internvl": (
        launch(),
        source(config={"model_type": "internvl_chat_x", "auto_map": {"AutoConfig": "configuration.C"}}),
    ),
    "trc-kimi": (launch(), source(config={"model_type": "kimi_k2_x", "auto_map": {"AutoConfig": "configuration.C"}})),
    "trt-libpython": unresolved("libpython3.10.so.1.0"),
    "trt-mpi-167": unresolved("libmpi.so.12"),
    "libcudart12-mixed": unresolved("libcudart.so.12"),
    "libcudart13": unresolved("libcudart.so.13"),
    "fa2-abi-qwenvl": (target(distribution("flash-attn", "2.7.4+cu12torch2.6"), distribution("torch", "2.9.0")),),
    "nccl-two-copies": (target(distribution("vllm-nccl-cu12", "2.18"), distribution("nvidia-nccl-cu12", "2.20")),),
    "nccl-acs-rtxpro": acs(),
    "p2p-rfc": acs(),
    "nccl-acs-5880": acs(),
    "nccl-iommu-2019": acs(),
    "nccl-4090-hang": (TWO, Links(pairs=(Link(a=0, b=1, path="SYS", p2p="not supported"),)), TP2),
    "nixl-missing-lmcache": connector("NixlConnector"),
    "nixl-missing-dynamo": connector("NixlConnector", "0.10.1"),
    "conn-example": connector("SharedStorageConnector"),
    "conn-pynccl": connector("PyNcclConnector", "0.10.2"),
    "port-race-39015": taken_port(),
    "port-9763": taken_port(),
    "fi-array-py310": (
        ImportAnnotations(
            uses=(
                AnnotationUse(
                    path="flashinfer/comm/fd_exchange.py",
                    line=55,
                    expression="array.array[int]",
                    reason="r",
                    evaluated_by="e",
                ),
            ),
            scanned=(),
            python="3.10.13",
        ),
    ),
    "fp8-a100-nemoclaw": fp8_on("NVIDIA A100", (8, 0), "modelopt fp8", version="0.26.0"),
    "fp8-3090": fp8_on("RTX 3090", (8, 6), version="0.10.0"),
    "fp8-ampere-qwen3": fp8_on("NVIDIA A100", (8, 0), version="0.8.5"),
    "fp8-ampere-regress": fp8_on("NVIDIA A100", (8, 0), version="0.19.1"),
    "fp8-ampere-sglang": fp8_on("NVIDIA A100", (8, 0)),
    "sinks-sm120": (gpus(compute_capability=(12, 2)), launch(attention_backend="FLASHINFER"), model()),
    "shm-ci-2026": low_shm(),
    "shm-k8s": low_shm(),
    "shm-minimax": low_shm(),
    "shm-vllm-1710": low_shm(),
    "draft-vocab-7252": other_vocabulary(),
    "draft-vocab-10913": other_vocabulary(),
    "draft-vocab-llamacpp": (llama(), model(vocabulary=152064), Draft(model=model())),
    "mm-profile-20123": (launch(), model(multimodal=True, source=source(config={"video_token_id": 7})), forecast()),
    "mm-profile-18550": (launch(), model(multimodal=True, source=source(config={"video_token_id": 7})), forecast()),
    "sampler-warmup-5090": (launch(max_num_seqs=1024), model(), forecast(memory=(device(headroom=GIB),))),
    "graph-margin-57475": (
        launch(gpu_memory_utilization=0.98),
        model(),
        forecast(memory=(device(headroom=480 << 20),)),
    ),
    "awq-internvl3-tp2": awq(29568, 2),
    "awq-group32-tp4": awq(11008, 4),
    "gptq-baichuan-tp4": awq(11008, 4),
    "awq-moe-blockk": awq(12288, 8, experts=128, expert_intermediate_size=1536),
    "heads-actionable": heads(64, 3),
    "heads-3gpu": heads(32, 3),
    "heads-52-8": heads(52, 8),
    "heads-gpustack": heads(32, 3),
    "kvheads-1581": heads(40, 4, kv=10),
    "kvheads-sgl-20967": heads(64, 16, kv=8),
    "experts-ep3": (launch(tensor_parallel_size=3, enable_expert_parallel=True), model(experts=256, heads=48)),
    "memlock-mooncake": (
        system(memlock=8 << 20),
        launch(kv_transfer_config={"kv_connector": "MooncakeConnector"}),
        request(),
    ),
    "memlock-nccl-206": (system(memlock=8 << 20), container(infiniband=True), TP2, request()),
    "memlock-mlperf": (system(memlock=8 << 20), container(infiniband=True), TP2, request()),
    "sgl-fi-version": (
        target(
            distribution("sglang", "0.5.10", "flashinfer-python==0.6.8"), distribution("flashinfer-python", "0.6.4")
        ),
        request("sglang"),
    ),
    "sgl-fi-pins": (
        target(
            distribution("sglang", "0.5.3", "flashinfer-python==0.4.0rc1"), distribution("flashinfer-python", "0.3.1")
        ),
        request("sglang"),
    ),
    "nixl-pin": (target(distribution("vllm", "0.30.0", "nixl<1.3"), distribution("nixl", "1.3.0")), request()),
    "xgrammar-dinfer": (
        target(distribution("vllm", "0.10.2", "xgrammar==0.1.23"), distribution("sglang", "0.5.3", "xgrammar==0.1.25")),
    ),
    "venvs-kvcached": (target(distribution("vllm", "0.10.2"), distribution("sglang", "0.5.3")),),
    "wsl-pin-1084": wsl(),
    "wsl-pin-500mb": wsl(),
    "wsl-pin-probe": wsl(),
    "openshift-cache-llmd": (
        Environment(
            variables={},
            caches=(
                CacheDirectory(
                    name="TRITON_CACHE_DIR", path="/.cache", set_by="default", mount=Mount(path="/", writable=False)
                ),
            ),
        ),
    ),
    "uid-docker-user": no_name(),
    "uid-nouser": no_name(),
    "uid-ramalama": no_name(),
    "infer-device-12847": no_gpus_in_container(),
    "infer-device-13946": no_gpus_in_container(),
    "infer-device-8885": no_gpus_in_container(),
    "libcuda1-gpustack": no_gpus_in_container(),
    "libcuda1-xinf": no_gpus_in_container(),
    "ollama-docker-nogpu": no_gpus_in_container("ollama"),
    "enospc-nemo": (home(20 * GIB), source(origin="hub", files=(ModelFile(name="model.safetensors", bytes=61 * GIB),))),
    "nvml-mismatch-doc": (
        NvidiaDriver(version="550.107.02", nvml_version="12.550.107.02", kernel_module_version="550.90.07"),
    ),
    "nvml-mismatch-unattended": (
        NvidiaDriver(version="460.73.01", nvml_version="11.460.73.01", kernel_module_version="460.56"),
    ),
    "bf16-p100": built_without((6, 0)),
    "nokernel-1080ti": built_without((6, 1)),
    "nokernel-p100-023": built_without((6, 0)),
    "nokernel-v100": built_without((7, 0)),
    "torch-cu130-v100": built_without((7, 0)),
    "gguf-split-missing": (
        gguf(
            files=(
                ModelFile(name="m-00001-of-00002.gguf", bytes=9),
                ModelFile(name="m-00002-of-00002.gguf", bytes=0, problem="missing"),
            )
        ),
    ),
    "gguf-split-cat": (gguf(general={"split.count": 3}, files=(ModelFile(name="joined.gguf", bytes=9),)),),
    "gguf-arch-ollama": (llama("b6630"), gguf("deepseek4")),
    "gguf-pretok-11341": (llama("b6630"), gguf(general={"tokenizer.ggml.pre": "of-tomorrow"})),
    "gated-skypilot": hugging_face("meta-llama/Llama-2-7b-hf is gated and no token was given"),
    "gated-tt": hugging_face("meta-llama/Llama-2-7b-hf is gated and no token was given"),
    "lmc-300gb": (request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "300"}), launch(tensor_parallel_size=4), system()),
    "lmc-cpu-tp2": (request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "50"}), TP2, system(memory_available=90 * GIB)),
    "ram-tp-load": (request(), TP2, model(source=source(weight_format="pytorch")), system(memory_available=24 * GIB)),
    "cudnn-35566": (target(distribution("nvidia-cudnn-cu13", "9.19.0.56")), gpus(compute_capability=(12, 0))),
    "inductor-17295": (target(distribution("torch", "2.6.0")),),
    "mnnvl-34948": (target(distribution("flashinfer-python", "0.6.13")), gpus(2, name="NVIDIA H200 NVL"), TP2),
    "kv-none-a800-v1": fits_not(weights=71 * GIB, budget=int(73.6 * GIB)),
    "kv-none-qwen05": fits_not(weights=2 * GIB, budget=3 * GIB, total=24 * GIB),
    "kv-none-v100-14b": fits_not(weights=28 * GIB, budget=30 * GIB, total=32 * GIB),
    "rope-qwen2vl-8388": typed("qwen2_vl", "4.45.0", "4.45.0.dev0"),
    "rope-runpod-89": typed("llama", "4.43.0", "4.42.3"),
    "tf-qwen25omni": typed("qwen2_5_omni", "4.52.0", "4.48.0"),
    "tf-qwen25vl": typed("qwen2_5_vl", "4.49.0", "4.46.1"),
    "tf-llavamed": typed("llava_mistral", "4.36.0", "4.45.0"),
    "cubin-403": (target(FLASHINFER), gpus(compute_capability=(10, 0)), request(environment={"HF_HUB_OFFLINE": "1"})),
    "tok-wrapper-kt": typed("llama4", "4.51.0", "4.43.2"),
    "tok-sentencepiece": (source(tokenizer=TokenizerFacts(file="tokenizer.model")), target()),
    "gloo-405b": (Network(hostname_resolves=False, interfaces=("eth0",)), launch(tensor_parallel_size=16), request()),
    "gloo-sgl": (
        Network(hostname_resolves=True, interfaces=("bond0",)),
        request("sglang", environment={"GLOO_SOCKET_IFNAME": "eth0"}),
    ),
    "env-attn-backend": (
        launch(problems=(ArgumentProblem(kind="ignored", flag="VLLM_ATTENTION_BACKEND", detail="no longer read"),)),
        request(),
    ),
    "flag-enable-reasoning": (
        launch(problems=(ArgumentProblem(kind="removed", flag="--enable-reasoning", detail="gone"),)),
    ),
    "awq-v100": (VOLTA, launch(version="0.4.0.post1", default=("dtype",)), model(quantization=AWQ)),
    "ct-2080ti": (t4(), launch(version="0.10.2"), model(quantization=PACKED)),
    "ct-v100-1cat": (VOLTA, launch(version="0.19.1"), model(quantization=PACKED)),
    "dsv32-ampere": (gpus(8), launch(version="0.13.0", tensor_parallel_size=8), SPARSE_LATENT),
    "dsv32-cutlass": (
        gpus(8, name="NVIDIA B200", compute_capability=(10, 0)),
        launch(version="0.12.0", tensor_parallel_size=8),
        request(environment={"VLLM_ATTENTION_BACKEND": "CUTLASS_MLA"}),
        SPARSE_LATENT,
    ),
    "gemma4-fi-512": (
        gpus(compute_capability=(12, 0)),
        launch(version="0.19.1", attention_backend="FLASHINFER"),
        model(layers=(Layer(caches=(Full(kv_heads=2, key_dim=512, value_dim=512),)),) * 4),
    ),
    "sdpa-cuda": (gpus(), launch(version="0.7.3", attention_backend="TORCH_SDPA"), model()),
    "fp8kv-3090": (gpus(compute_capability=(8, 6)), launch(version="0.11.0", kv_cache_dtype="fp8"), model()),
    "parser-openai": (launch(version="0.10.1", tool_call_parser="openai"),),
    "chunk-off": (
        launch(version="0.24.0", enable_chunked_prefill=False, max_num_batched_tokens=8192, max_model_len=131072),
    ),
    "bnb-missing-gpustack": (
        target(distribution("vllm", "0.8.5.post1")),
        launch(version="0.8.5.post1"),
        request(),
        model(quantization=Quantization(method="bitsandbytes")),
    ),
    "bnb-missing-sgl": (
        target(distribution("sglang", "0.4.1")),
        request("sglang"),
        model(quantization=Quantization(method="bitsandbytes")),
    ),
    "gguf-sd3": (llama("b4000"), gguf("sd3")),
    "compat-cuda13-5090": compat_first("595.58.03", "13.1", "NVIDIA GeForce RTX 5090"),
    "ik-cu13-3090": compat_first("580.159.03", "13.1", "NVIDIA GeForce RTX 3090"),
    "libcuda-newer-545": (
        NvidiaDriver(version="545.23.08", kernel_module_version="545.23.08", cuda_version="12.5"),
        container(kind="none"),
    ),
    "tf5-vllm011": (target(distribution("vllm", "0.11.0"), distribution("transformers", "5.0.0")),),
    "tf5-pin": (
        target(distribution("vllm", "0.17.1", "transformers<5,>=4.56.0"), distribution("transformers", "5.3.0")),
        request(),
    ),
    "torch-221": (target(distribution("vllm", "0.3.2", "torch==2.1.2"), distribution("torch", "2.2.1")), request()),
    "gb10-pip": (target(distribution("torch", "2.9.0"), torch_cuda="none"),),
    "tp2-spark": (launch(version="0.15.0", tensor_parallel_size=2), gpus(compute_capability=(12, 1))),
    "prefix-inert-qwen35": (
        launch(version="0.19.1", enable_prefix_caching=True, max_model_len=1024),
        HYBRID,
        forecast(cache=cache(block_tokens=528)),
    ),
    "vllm-draft-ctx": (launch(version="0.9.2"), Draft(model=model(training_length=2048))),
}
"""By the report's id."""
