"""For every check facts that make it fire and facts that leave it silent; the conformance tests run them all."""

from __future__ import annotations

from typing import NamedTuple

from llmdoctor_core.facts import (
    AnnotationUse,
    ArgumentProblem,
    BrokenInterpreter,
    CacheDirectory,
    CudaToolkits,
    Draft,
    Environment,
    Fact,
    GpuProcess,
    HostSurprise,
    ImportAnnotations,
    JitCompiler,
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
    SlidingWindow,
    State,
    TensorGroup,
    TokenizerFacts,
    Toolkit,
    Unavailable,
)

from .building import (
    FULL,
    GIB,
    cache,
    container,
    device,
    distribution,
    forecast,
    gguf,
    gpus,
    launch,
    links,
    llama,
    model,
    request,
    source,
    system,
    t4,
    target,
)


class Example(NamedTuple):
    """Facts by which a check fires, and facts by which it does not."""

    fires: tuple[Fact, ...]
    silent: tuple[Fact, ...]


TWO = gpus(2)
PCIE = links((0, 1, "PHB", 0))
NVLINK = links((0, 1, "PHB", 12))
TP2 = launch(tensor_parallel_size=2)
FLASHINFER = distribution("flashinfer-python", "0.7.2")
WITH_FLASHINFER = target(FLASHINFER, distribution("vllm", "0.32.0"))
NVCC_13 = JitCompiler(
    nvcc="/usr/local/cuda/bin/nvcc",
    cuda_home="/usr/local/cuda",
    chosen_by="CUDA_HOME",
    version="13.0",
    host_compiler="/usr/bin/gcc",
    host_compiler_version="13.2",
)
NVCC_12 = JitCompiler(nvcc="/usr/bin/nvcc", cuda_home="/usr", chosen_by="which nvcc", version="12.4")
NO_NVCC = JitCompiler(nvcc=None, cuda_home=None, chosen_by="nothing found", lacks=("nvcc",))
ALONE = CudaToolkits(
    toolkits=(Toolkit(path="/usr/local/cuda", origin="CUDA_HOME", nvcc_version="13.0", header_version="13.0"),)
)
PIP_KIT = Toolkit(
    path="/opt/venv/nvidia/cu13", origin="environment", nvcc="/opt/venv/nvidia/cu13/bin/nvcc", nvcc_version="13.5"
)
PLAIN = distribution("vllm", "0.32.0", "torch==2.13.0")
GEMMA = model(
    layers=(Layer(caches=(SlidingWindow(window=1024, kv_heads=4, key_dim=256, value_dim=256),)),) * 29 + (FULL,) * 5,
    model_type="gemma3",
)
HYBRID = model(
    layers=(Layer(caches=(State(kind="gdn", shapes=((8192, 3), (32, 128, 128))),)), FULL) * 18,
    architecture="Qwen3NextForCausalLM",
)
LLAMA_CACHE = cache(
    request_tokens=8192,
    blocks=None,
    blocks_per_request=None,
    bytes=1152 << 20,
    tokens=8192,
    slot_tokens=8192,
    max_concurrency=None,
)


def problem(kind: str, flag: str, **more: str) -> ArgumentProblem:
    return ArgumentProblem(kind=kind, flag=flag, detail="no release takes it", **more)  # type: ignore[arg-type]


def caches(**fields: object) -> Environment:
    mount = {"path": "/root/.cache", "filesystem": "ext4", "size": 1 << 40, "free": 1 << 40, "writable": True} | fields
    return Environment(
        variables={"USER": "serve"},
        caches=(CacheDirectory(name="TRITON_CACHE_DIR", path="/root/.cache", set_by="default", mount=Mount(**mount)),),  # type: ignore[arg-type]
    )


def home(free: int) -> Environment:
    mount = Mount(path="/cache", free=free, writable=True)
    return Environment(
        variables={}, caches=(CacheDirectory(name="HF_HOME", path="/cache", set_by="environment", mount=mount),)
    )


ON_HUB = source(origin="hub", files=(ModelFile(name="model.safetensors", bytes=16 * GIB),))
TRUNCATED = ModelFile(name="model-00002.safetensors", bytes=1000, expected_bytes=5 * GIB, problem="truncated")
WHOLE = ModelFile(name="model-00001.safetensors", bytes=5 * GIB)
SNAPSHOT = TokenizerFacts(chat_template=False)

CASES: dict[str, Example] = {
    "GPU001": Example((gpus(2, visible_as=None, host={"visible_devices": ""}),), (gpus(),)),
    "GPU002": Example((gpus(processes=(GpuProcess(pid=4711, name="VLLM::EngineCore", memory=70 * GIB),)),), (gpus(),)),
    "GPU003": Example((gpus(memory_free=70 * GIB), launch()), (gpus(), launch())),
    "GPU004": Example((gpus(2, host={"order_uncertain": "models differ"}), launch()), (gpus(2), TP2)),
    "GPU005": Example((gpus(ecc_uncorrected=3),), (gpus(),)),
    "GPU006": Example((Unavailable(reason="the kernel module is not loaded"),), (gpus(),)),
    "GPU007": Example((gpus(lost="GPU is lost"),), (gpus(xid=(13,)),)),
    "GPU008": Example(
        (gpus(2, host={"visible_devices": "0,7", "visible_problem": "'7' is no GPU; it ends the list"}),),
        (gpus(2, host={"visible_devices": "0,1"}), launch()),
    ),
    "GPU009": Example(
        (gpus(throttling=("hardware thermal slowdown",)),), (gpus(throttling=("idle", "application clocks")),)
    ),
    "GPU010": Example((gpus(fabric_state="in progress"), NVLINK), (gpus(fabric_state="completed"), NVLINK)),
    "GPU011": Example(
        (gpus(compute_capability=(7, 0)), target(distribution("torch", "2.13.0"))),
        (gpus(), target(distribution("torch", "2.13.0"))),
    ),
    "GPU012": Example((t4(), launch(), model()), (t4(), launch(dtype="half"), model())),
    "GPU013": Example(
        (t4(), launch(version="0.10.0"), model(quantization=Quantization(method="fp8", bits=8))),
        (gpus(), launch(), model(quantization=Quantization(method="awq", bits=4))),
    ),
    "GPU014": Example(
        (gpus(), launch(attention_backend="FLASHMLA"), model()),
        (gpus(), launch(attention_backend="FLASH_ATTN"), model()),
    ),
    "GPU015": Example((gpus(mig_enabled=True),), (gpus(mig_enabled=False),)),
    "LINK101": Example((TWO, PCIE, TP2, model()), (TWO, NVLINK, TP2, model())),
    "LINK102": Example(
        (TWO, Links(pairs=(Link(a=0, b=1, path="SYS", p2p="chipset not supported"),)), TP2),
        (TWO, PCIE, TP2),
    ),
    "LINK103": Example((gpus(pcie_width=4),), (gpus(),)),
    "LINK104": Example((TWO, PCIE, TP2, system(iommu="on")), (TWO, PCIE, TP2, system())),
    "CUDA201": Example((NvidiaDriver(version="535.104.05"), target()), (NvidiaDriver(version="580.95.05"), target())),
    "CUDA202": Example(
        (
            NvidiaDriver(version="580.95.05", cuda_version="12.9"),
            container(libcuda=("/usr/local/cuda/compat/libcuda.so.1", "/usr/lib/libcuda.so.1")),
        ),
        (NvidiaDriver(version="580.95.05", cuda_version="13.0"), container()),
    ),
    "CUDA203": Example(
        (
            NvidiaDriver(version="535.104.05", cuda_version="13.0"),
            container(libcuda=("/usr/local/cuda/compat/libcuda.so.1",)),
            gpus(name="NVIDIA GeForce RTX 4090"),
        ),
        (
            NvidiaDriver(version="535.104.05", cuda_version="13.0"),
            container(libcuda=("/usr/local/cuda/compat/libcuda.so.1",)),
            gpus(),
        ),
    ),
    "CUDA204": Example(
        (NvidiaDriver(version="580.95.05", nvml_version="13.580.95.05", kernel_module_version="580.65.06"),),
        (NvidiaDriver(version="580.95.05", nvml_version="13.580.95.05", kernel_module_version="580.95.05"),),
    ),
    "CUDA210": Example(
        (NVCC_12, WITH_FLASHINFER, request(version="0.32.0")), (NVCC_13, WITH_FLASHINFER, request(version="0.32.0"))
    ),
    "CUDA211": Example(
        (NVCC_12, WITH_FLASHINFER, gpus(compute_capability=(12, 0)), request()),
        (NVCC_13, WITH_FLASHINFER, gpus(), request()),
    ),
    "CUDA212": Example((NO_NVCC, WITH_FLASHINFER, request(version="0.31.0")), (NVCC_13, WITH_FLASHINFER, request())),
    "CUDA213": Example(
        (
            JitCompiler(nvcc="/usr/bin/nvcc", cuda_home="/usr", chosen_by="which nvcc", lacks=("ninja",)),
            WITH_FLASHINFER,
            request(),
        ),
        (NVCC_13, WITH_FLASHINFER, request()),
    ),
    "CUDA214": Example(
        (NVCC_13, CudaToolkits(toolkits=(), variables={"CUDA_HOME": ":/usr/local/cuda-12.8"}), WITH_FLASHINFER),
        (NVCC_13, ALONE, WITH_FLASHINFER),
    ),
    "CUDA215": Example(
        (NVCC_12, CudaToolkits(toolkits=(PIP_KIT,)), WITH_FLASHINFER), (NVCC_13, ALONE, WITH_FLASHINFER)
    ),
    "CUDA216": Example(
        (
            JitCompiler(
                nvcc="/usr/bin/nvcc",
                cuda_home="/usr",
                chosen_by="which nvcc",
                version="12.4",
                host_compiler="g++",
                host_compiler_version="14.2",
            ),
            WITH_FLASHINFER,
        ),
        (NVCC_13, WITH_FLASHINFER),
    ),
    "CUDA217": Example(
        (target(distribution("flashinfer-jit-cache", "0.7.2+cu129")),),
        (target(distribution("flashinfer-jit-cache", "0.7.2+cu130")),),
    ),
    "CUDA218": Example(
        (target(distribution("triton", "3.5.0")), gpus(compute_capability=(12, 1))),
        (target(distribution("triton", "3.7.1")), gpus(compute_capability=(12, 1))),
    ),
    "CUDA219": Example(
        (target(FLASHINFER, distribution("flashinfer-cubin", "0.6.13")),),
        (target(FLASHINFER, distribution("flashinfer-cubin", "0.7.2")),),
    ),
    "CUDA220": Example(
        (target(FLASHINFER), gpus(compute_capability=(10, 0)), request(environment={"HF_HUB_OFFLINE": "1"})),
        (target(FLASHINFER), gpus(compute_capability=(10, 0)), request()),
    ),
    "PY301": Example(
        (
            ImportAnnotations(
                uses=(
                    AnnotationUse(
                        path="/venv/flashinfer/comm/fd_exchange.py",
                        line=55,
                        expression="array.array[int]",
                        reason="array.array is not subscriptable before Python 3.12",
                        evaluated_by="function annotation",
                        distribution="flashinfer-python",
                    ),
                ),
                scanned=("flashinfer-python 0.6.16.post3",),
                python="3.10.13",
            ),
        ),
        (ImportAnnotations(uses=(), scanned=("flashinfer-python 0.7.4",), python="3.12.1"),),
    ),
    "PY302": Example((BrokenInterpreter(python="/opt/venv/bin/python", problem="no such file"),), (target(),)),
    "PY303": Example(
        (target(PLAIN, distribution("torch", "2.10.0")), request()),
        (target(PLAIN, distribution("torch", "2.13.0+cu130")), request()),
    ),
    "PY304": Example(
        (target(native=(NativeLibrary(path="vllm/_C.so", distribution="vllm", unresolved=("libcudart.so.12",)),)),),
        (target(native=(NativeLibrary(path="vllm/_C.so", distribution="vllm", unresolved=("libcuda.so.1",)),)),),
    ),
    "PY305": Example(
        (target(distribution("torch", "2.13.0+cpu"), torch_cuda="none"),), (target(distribution("torch", "2.13.0")),)
    ),
    "PY306": Example(
        (target(distribution("flashinfer-python", "0.4.0")),), (target(distribution("flashinfer-python", "0.4.1")),)
    ),
    "PY307": Example(
        (
            target(
                distribution("vllm", "0.10.2", "xgrammar==0.1.23"), distribution("sglang", "0.5.3", "xgrammar==0.1.25")
            ),
        ),
        (target(PLAIN),),
    ),
    "PY308": Example(
        (target(native=(NativeLibrary(path="vllm/_C.so", symbol_versions={"GLIBC": "2.34"}),)), system(glibc="2.31")),
        (target(native=(NativeLibrary(path="vllm/_C.so", symbol_versions={"GLIBC": "2.34"}),)), system()),
    ),
    "PY309": Example(
        (
            target(PLAIN, distribution("transformers", "4.50.0")),
            model(source=source(config={"model_type": "qwen3"})),
            request(),
        ),
        (
            target(PLAIN, distribution("transformers", "5.16.1")),
            model(source=source(config={"model_type": "qwen3"})),
            request(),
        ),
    ),
    "PY310": Example(
        (target(distribution("vllm", "0.32.0", requires_python=">=3.11"), version=(3, 10, 13)), request()),
        (target(distribution("vllm", "0.32.0", requires_python=">=3.11")), request()),
    ),
    "PY311": Example((target(), request()), (target(PLAIN, distribution("torch", "2.13.0")), request())),
    "MODEL510": Example((source(files=(TRUNCATED,)),), (source(files=(WHOLE,)),)),
    "MODEL511": Example(
        (
            launch(),
            source(config={"model_type": "strange", "auto_map": {"AutoConfig": "configuration_strange.Config"}}),
        ),
        (launch(trust_remote_code=True), source(config={"model_type": "strange", "auto_map": {"AutoConfig": "c.C"}})),
    ),
    "MODEL512": Example((source(tokenizer=SNAPSHOT),), (source(tokenizer=TokenizerFacts(chat_template=True)),)),
    "MODEL513": Example(
        (launch(), model(architecture="Phi3SmallForCausalLM")), (launch(), model(architecture="Qwen3ForCausalLM"))
    ),
    "MODEL514": Example(
        (Unavailable(reason="org/model is gated and no token is set"), request(model="org/model")),
        (source(), request(model="org/model")),
    ),
    "MODEL515": Example((source(notes=("tokenizer.json holds no vocabulary that llmdoctor can read",)),), (source(),)),
    "MODEL518": Example(
        (launch(version="0.32.0"), model(source=source(config={"quantization_config": {"quant_method": "aqlm"}}))),
        (launch(version="0.32.0"), model(source=source(config={"quantization_config": {"quant_method": "awq"}}))),
    ),
    "MODEL516": Example(
        (
            model(
                source=source(
                    config={"quantization_config": {"quant_algo": "FP8"}},
                    quantization_config={"quantization": {"quant_algo": "NVFP4"}},
                )
            ),
        ),
        (model(weights=(TensorGroup(kind="mlp", bytes=GIB, elements=1, dtype="BF16"),)),),
    ),
    "GGUF501": Example(
        (
            gguf(
                "deepseek2",
                metadata={
                    "attention.kv_lora_rank": 512,
                    "rope.dimension_count": 64,
                    "attention.head_count": 16,
                    "attention.key_length": 192,
                    "attention.value_length": 128,
                },
            ),
        ),
        (
            gguf(
                "deepseek2",
                metadata={"attention.kv_lora_rank": 512, "rope.dimension_count": 64, "attention.key_length_mla": 192},
            ),
        ),
    ),
    "GGUF502": Example(
        (model(architecture="gemma3", source=gguf("gemma3")),),
        (
            model(
                architecture="gemma3",
                layers=GEMMA.layers,
                source=gguf("gemma3", metadata={"attention.sliding_window": 1024}),
            ),
        ),
    ),
    "GGUF503": Example((llama(), gguf("of-tomorrow")), (llama(), gguf("qwen3"))),
    "GGUF504": Example(
        (llama(), gguf(general={"tokenizer.ggml.pre": "of-tomorrow"})),
        (llama(), gguf(general={"tokenizer.ggml.pre": "qwen2"})),
    ),
    "GGUF505": Example(
        (gguf(files=(ModelFile(name="m-00002-of-00002.gguf", bytes=0, problem="missing"),)),),
        (gguf(files=(ModelFile(name="m.gguf", bytes=9),)),),
    ),
    "GGUF506": Example(
        (gguf(files=(ModelFile(name="m.gguf", bytes=100, expected_bytes=GIB, problem="truncated"),)),),
        (gguf(files=(ModelFile(name="m.gguf", bytes=GIB, expected_bytes=GIB),)),),
    ),
    "GGUF507": Example(
        (source(config=None, files=(ModelFile(name="m.gguf", bytes=130, problem="a git-lfs pointer"),)),), (gguf(),)
    ),
    "GGUF508": Example(
        (
            request("llamacpp"),
            llama(cache_type_v="q4_0"),
            forecast(refused=Refusal(code="GGUF508", message="quantized V cache requires flash_attn to be enabled")),
        ),
        (request("llamacpp"), llama(cache_type_k="q8_0", cache_type_v="q8_0"), forecast()),
    ),
    "GGUF509": Example(
        (llama(gpu_layers=10), model(), gpus()), (llama(gpu_layers="auto", default=("gpu_layers",)), model(), gpus())
    ),
    "DRAFT401": Example(
        (launch(speculative_config={"model": "org/draft"}), model(vocabulary=152064), Draft(model=model())),
        (launch(speculative_config={"model": "org/draft"}), model(), Draft(model=model())),
    ),
    "DRAFT402": Example(
        (launch(version="0.12.0", speculative_config={"model": "org/draft"}),),
        (launch(version="0.15.0", speculative_config={"model": "org/draft"}),),
    ),
    "DRAFT404": Example(
        (launch(version="0.32.0"), Draft(model=model(training_length=2048))),
        (launch(version="0.32.0"), Draft(model=model())),
    ),
    "DRAFT403": Example(
        (launch(tensor_parallel_size=2, speculative_config={"model": "d", "draft_tensor_parallel_size": 1}),),
        (launch(tensor_parallel_size=2, speculative_config={"model": "d"}),),
    ),
    "TP701": Example((launch(tensor_parallel_size=3), model()), (launch(tensor_parallel_size=4), model())),
    "TP702": Example((launch(tensor_parallel_size=16), model()), (launch(tensor_parallel_size=8), model())),
    "TP703": Example(
        (
            launch(tensor_parallel_size=2),
            model(intermediate_size=29568, quantization=Quantization(method="awq", bits=4, group_size=128)),
        ),
        (
            launch(tensor_parallel_size=2),
            model(intermediate_size=18944, quantization=Quantization(method="awq", bits=4, group_size=128)),
        ),
    ),
    "TP704": Example((launch(tensor_parallel_size=4), TWO), (TP2, TWO)),
    "TP706": Example(
        (launch(pipeline_parallel_size=2), model(architecture="Gemma3nForConditionalGeneration")),
        (launch(pipeline_parallel_size=2), model()),
    ),
    "TP705": Example((launch(tensor_parallel_size=2), model(intermediate_size=1001)), (TP2, model())),
    "CTX601": Example(
        (
            launch(max_model_len=131072),
            model(),
            forecast(
                refused=Refusal(
                    code="CTX601",
                    message="User-specified max_model_len (131072) is greater than the derived max_model_len",
                )
            ),
        ),
        (launch(max_model_len=32768), model(), forecast()),
    ),
    "CTX602": Example(
        (llama(ctx_size=8192, parallel=-1), forecast(cache=LLAMA_CACHE)),
        (llama(ctx_size=8192, parallel=1), forecast(cache=LLAMA_CACHE)),
    ),
    "CTX603": Example(
        (
            launch(),
            forecast(
                cache=cache(blocks=1000, bytes=int(2.2 * GIB)),
                refused=Refusal(code="CTX603", message="To serve at least one request"),
            ),
        ),
        (launch(), forecast()),
    ),
    "CTX604": Example(
        (
            llama(ctx_size=131072, parallel=1),
            model(),
            forecast(
                cache=cache(blocks=None, blocks_per_request=None, bytes=18 * GIB, tokens=131072, slot_tokens=40960)
            ),
        ),
        (llama(ctx_size=8192, parallel=1), model(), forecast(cache=LLAMA_CACHE)),
    ),
    "CTX605": Example(
        (request("llamacpp"), llama(ctx_size=0, default=("ctx_size",)), model(), forecast(cache=LLAMA_CACHE)),
        (request("llamacpp"), llama(ctx_size=8192), model(), forecast(cache=LLAMA_CACHE)),
    ),
    "MEM801": Example(
        (launch(), model(), forecast(memory=(device(weights=140 * GIB),))), (launch(), model(), forecast())
    ),
    "MEM802": Example(
        (launch(), forecast(cache=cache(blocks=2000, bytes=int(4.4 * GIB)), memory=(device(cache=int(4.4 * GIB)),))),
        (launch(), forecast()),
    ),
    "MEM803": Example((launch(), forecast(memory=(device(weights=72 * GIB),))), (launch(), forecast())),
    "MEM804": Example((launch(max_num_seqs=8192), model(), forecast()), (launch(), model(), forecast())),
    "MEM805": Example(
        (launch(max_num_seqs=1024), HYBRID, forecast(cache=cache(blocks=614))),
        (launch(max_num_seqs=256), HYBRID, forecast(cache=cache(blocks=614))),
    ),
    "MEM806": Example(
        (request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "40"}), launch(tensor_parallel_size=8), system()),
        (request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "5"}), launch(), system()),
    ),
    "MEM807": Example(
        (
            forecast(host=(HostSurprise(name="prompt cache", bytes=8 * GIB, why="--cache-ram"),)),
            system(memory_available=4 * GIB),
        ),
        (forecast(host=(HostSurprise(name="prompt cache", bytes=8 * GIB, why="--cache-ram"),)), system()),
    ),
    "MEM808": Example((launch(disable_hybrid_kv_cache_manager=True), GEMMA), (launch(), GEMMA)),
    "MEM811": Example(
        (model(experts=128), WITH_FLASHINFER, system(cpus=64, memory_available=64 * GIB), request()),
        (model(), WITH_FLASHINFER, system(cpus=64), request()),
    ),
    "ARG901": Example((launch(problems=(problem("unknown", "--max-len", nearest="--max-model-len"),)),), (launch(),)),
    "ARG902": Example(
        (
            launch(
                problems=(problem("removed", "--enable-reasoning", since="0.10.0", replacement="--reasoning-parser"),)
            ),
        ),
        (launch(),),
    ),
    "ARG903": Example((launch(problems=(problem("invalid", "--dtype"),)),), (launch(),)),
    "ARG904": Example(
        (request(environment={"LM_CACHE_MAX_LOCAL_CPU_SIZE": "5"}),),
        (request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "5"}),),
    ),
    "MODEL517": Example(
        (
            launch(lora_modules=["a=/ad"], max_lora_rank=16),
            request(config_files={"/ad/adapter_config.json": '{"r": 64}'}),
        ),
        (
            launch(lora_modules=["a=/ad"], max_lora_rank=64),
            request(config_files={"/ad/adapter_config.json": '{"r": 64}'}),
        ),
    ),
    "ARG905": Example((launch(max_num_batched_tokens=128),), (launch(),)),
    "HOST101": Example(
        (container(shm=Mount(path="/dev/shm", size=64 << 20, free=64 << 20)), TP2, request()),
        (container(), TP2, request()),
    ),
    "HOST102": Example(
        (system(memlock=8 << 20), launch(kv_transfer_config={"kv_connector": "NixlConnector"}), request()),
        (system(), launch(kv_transfer_config={"kv_connector": "NixlConnector"}), request()),
    ),
    "HOST103": Example((container(memory_limit=2 * GIB), model()), (container(memory_limit=64 * GIB), model())),
    "HOST104": Example((caches(writable=False),), (caches(),)),
    "HOST105": Example((home(4 * GIB), ON_HUB), (home(400 * GIB), ON_HUB)),
    "HOST106": Example((container(devices=()), request()), (container(), request())),
    "HOST107": Example(
        (Network(ports=(Port(port=8000, host="0.0.0.0", free=False, holder="python (pid 12)"),)),),
        (Network(ports=(Port(port=8000, host="0.0.0.0", free=True),)),),
    ),
    "HOST108": Example(
        (
            Network(hostname_resolves=True, interfaces=("lo", "eth0")),
            request(environment={"GLOO_SOCKET_IFNAME": "ib0"}),
        ),
        (
            Network(hostname_resolves=True, interfaces=("lo", "eth0")),
            request(environment={"GLOO_SOCKET_IFNAME": "eth0"}),
        ),
    ),
    "HOST109": Example((system(cpu_flags=("sse4_2",)), request("llamacpp")), (system(), request("llamacpp"))),
    "HOST110": Example((system(hugepages_free=20000),), (system(),)),
    "HOST112": Example(
        (system(wsl=True), launch(cpu_offload_gb=10), request()), (system(wsl=True), launch(), request())
    ),
    "HOST113": Example((system(open_files=1024), request("sglang")), (system(), request())),
    "KVT401": Example(
        (launch(kv_transfer_config={"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}),),
        (launch(kv_transfer_config={"kv_connector": "ExampleConnector", "kv_role": "kv_both"}),),
    ),
    "KVT402": Example(
        (launch(kv_transfer_config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}), target()),
        (
            launch(kv_transfer_config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
            target(distribution("nixl", "1.1.0")),
        ),
    ),
}
"""By code, in the order of the catalogue's families."""
