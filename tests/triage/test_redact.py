"""Redaction: no planted secret survives in any text or fact; what only looks like one does."""

from __future__ import annotations

import string

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmdoctor_core.case import Case, encode
from llmdoctor_core.facts import (
    Container,
    Distribution,
    Environment,
    LaunchRequest,
    Measured,
    System,
    TargetEnvironment,
)
from llmdoctor_core.redact import PSEUDONYM, Redactor, secret_name

ALPHABET = string.ascii_letters + string.digits


def _text(least: int, most: int, alphabet: str = ALPHABET) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


TOKENS = st.one_of(
    _text(20, 40).map(lambda t: "hf_" + t),
    _text(24, 48).map(lambda t: "sk-" + t),
    _text(24, 48).map(lambda t: "sk-ant-" + t),
    _text(24, 48).map(lambda t: "nvapi-" + t),
    _text(30, 36).map(lambda t: "ghp_" + t),
    _text(16, 16, string.ascii_uppercase + string.digits).map(lambda t: "AKIA" + t),
    st.tuples(_text(10, 20), _text(10, 30), _text(10, 30)).map(lambda p: f"eyJ{p[0]}.{p[1]}.{p[2]}"),
    _text(12, 24).map(lambda t: "xoxb-" + t),
)
PASSWORDS = _text(8, 24, ALPHABET + "!$%^*+._-").map(lambda t: "Zq9" + t)  # no placeholder ("undefined") by chance
SECRET_NAMES = st.sampled_from(
    [
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "password",
        "db_passwd",
        "apiKey",
        "client_secret",
        "WANDB_API_KEY",
    ]
)
ADDRESSES = st.one_of(
    st.tuples(st.integers(11, 223), *[st.integers(1, 254)] * 3).map(lambda p: ".".join(map(str, p))),
    st.ip_addresses(v=6, network="2001:db8::/32").map(str),
)
USERS = (
    st.text(string.ascii_lowercase, min_size=6, max_size=10)
    .filter(
        lambda t: t not in ("ubuntu", "nobody", "runner", "jovyan", "shared", "public", "default", "centos", "fedora")
    )
    .map(lambda t: "zq" + t)
)  # "zq": not part of any word that a log holds
HOSTS = st.integers(1, 99).map(lambda n: f"zqgpu-node-{n:02}")


@st.composite
def planted_line(draw: st.DrawFn) -> tuple[str, str]:
    """A log line with a secret in it, and the secret."""
    kind = draw(st.integers(0, 11))
    token, password, name = draw(TOKENS), draw(PASSWORDS), draw(SECRET_NAMES)
    user, host, address = draw(USERS), draw(HOSTS), draw(ADDRESSES)
    if kind == 0:
        return f"INFO 07-15 10:00:00 [hub.py:1] using {token} for download", token
    if kind == 1:
        return f"environ: {name}={password} PATH=/usr/bin", password
    if kind == 2:
        return f'{{"level": "info", "{name}": "{password}", "port": 8000}}', password
    if kind == 3:
        return f"vllm serve m --api-key {token} --port 8000", token
    if kind == 4:
        return f"GET https://{user}:{draw(_text(8, 16))}@registry.example.com/v2/ 401", user
    if kind == 5:
        return f"> Authorization: Bearer {draw(_text(16, 40))}xyz", "xyz"
    if kind == 6:
        return f'  File "/home/{user}/venv/lib/python3.12/site-packages/vllm/x.py", line 3', user
    if kind == 7:
        return f"{user}@{host}:~/models$ vllm serve m", host
    if kind == 8:
        return (
            f"INFO:     {address if ':' not in address else '[' + address + ']'}:5123 - POST /v1/chat 200 OK",
            address,
        )
    if kind == 9:
        return f"contact {user}.{draw(_text(3, 8, string.ascii_lowercase))}@example.com for help", user
    if kind == 10:
        words = draw(st.lists(_text(4, 9, string.ascii_lowercase).map(lambda t: "zq" + t), min_size=3, max_size=9))
        return f"Received request cmpl-1: prompt: '{' '.join(words)}', params: SamplingParams(n=1)", " ".join(words)
    return f"Jul 15 10:00:00 {host} ollama[12]: started", host


@pytest.mark.parametrize(
    "line",
    [
        "non-default args: {'model_tag': 'm', 'api_key': ['K1', \"K2\"], 'port': 8000}",
        "args: Namespace(api_key=['K1', 'K2'], port=8000)",
        "vllm serve m --api-key K1 K2 --port 8000",
        '{"api_keys": ["K1", "K2"], "port": 8000}',
    ],
)
def test_each_of_several_keys_is_taken_out(line: str) -> None:
    told = Redactor().text(line.replace("K1", "zq1abcdefgh").replace("K2", "zq2ijklmnop"))
    assert "zq" not in told
    assert "8000" in told


@given(st.lists(planted_line(), min_size=1, max_size=12))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_planted_secret_survives_in_a_log(lines: list[tuple[str, str]]) -> None:
    text = "\n".join(line for line, _ in lines)
    redacted = Redactor().text(text)
    for line, secret in lines:
        assert secret not in redacted.replace("xyz.py", ""), line
    assert Redactor().text(redacted) == redacted, "idempotent"


@given(TOKENS, PASSWORDS, USERS, HOSTS, ADDRESSES, SECRET_NAMES)
@settings(max_examples=60, deadline=None)
def test_no_planted_secret_survives_in_a_case(
    token: str, password: str, user: str, host: str, address: str, name: str
) -> None:
    where = f"http://{address if ':' not in address else '[' + address + ']'}:9000/x"
    case = Case(
        host=host,
        launch=LaunchRequest(
            runtime="vllm",
            argv=("vllm", "serve", f"/home/{user}/m", "--api-key", password, f"--hf-token={token}", "--host", address),
            environment={name: password, "MASTER_ADDR": address, "HOME": f"/home/{user}"},
            config_files={f"/home/{user}/c.yaml": f"api_key: {password}\nendpoint: {where}\n"},
            model=f"/home/{user}/m",
        ),
        system=System(kernel="6.8.0", user=user),
        container=Container(kind="docker", image=f"https://{user}:{password}@registry.example.com/vllm:0.11"),
        environment=Environment(variables={"WANDB_API_KEY": password, "NOTE": f"ssh {user}@{host}:/data uses {token}"}),
        target=TargetEnvironment(
            python=f"/home/{user}/venv/bin/python",
            version=(3, 12, 1),
            distributions={"x": Distribution(name="x", version="9.1.0.70", location=f"/home/{user}/venv")},
        ),
        measured=Measured(
            runtime="vllm", command=("vllm", "serve", "--token", token), until="ready", reached="nothing",
            ending="died", tail=(f"connect to {where} failed", f"{name}: {password}"),
        ),
    )  # fmt: skip
    redactor = Redactor()
    redacted = redactor.case(case)
    text = encode(redacted).decode()
    for secret in (token, password, user, host, address):
        assert secret not in text
    assert "9.1.0.70" in text, "a version that looks like an address"
    assert encode(Redactor().case(redacted)).decode() == text, "idempotent"
    assert sum(entry.count for entry in redactor.report()) > 5


VERSIONS = [
    "driver version 550.54.15.1",
    "nvidia-cudnn-cu12==9.1.0.70",
    "expecting library version 10.0.1.6 got 10.3.0.26",
    "libcudnn.so.9.1.0.70: cannot open shared object file",
    "Collecting nvidia-cublas-cu12 12.8.4.1",
    'cuda_version: "12.8.0.38"',
    "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux_2_27_x86_64.whl",
    "TensorRT 10.3.0.26",
    "NCCL version 2.27.3.1",
    "Open MPI v4.1.5.1",
]


@pytest.mark.parametrize("line", VERSIONS)
def test_versions_that_look_like_addresses_survive(line: str) -> None:
    assert Redactor().text(line) == line


@pytest.mark.parametrize(
    "line",
    [
        "max_num_batched_tokens=2048, pad_token_id: 151643, eos_token='</s>'",
        "Decode batch, #running-req: 1, #token: 245, token usage: 0.01",
        "INFO: Avg prompt throughput: 12.1 tokens/s, prompt_tokens=17",
        "listening on 127.0.0.1:8000 and [::1]:8000 at 10:00:00 std::string c10::cuda::set 0000:41:00.0",
        "tokenizer=Qwen/Qwen3-8B, skip_tokenizer_init=False, tokenizer_mode=auto",
        "HF_TOKEN is not set; api_key=None, password: null",
        "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py and /home/ubuntu/x and /root/.cache",
        "AssertionError: 10 is not divisible by 4",
    ],
)
def test_what_is_no_secret_survives(line: str) -> None:
    assert Redactor().text(line) == line


def test_the_same_secret_has_the_same_pseudonym_everywhere() -> None:
    redactor = Redactor()
    first = redactor.text("HF_TOKEN=hf_abcdefghijklmnopqrstuv")
    second = redactor.text("curl -H 'Authorization: Bearer hf_abcdefghijklmnopqrstuv' https://huggingface.co")
    assert PSEUDONYM.search(first)[0] == PSEUDONYM.search(second)[0]  # type: ignore[index]
    assert "https://huggingface.co" in second


def test_a_secret_told_by_its_name_once_is_found_where_nothing_points_at_it() -> None:
    redactor = Redactor()
    redactor.learn(["password=correct-horse-7"])
    assert redactor.text("retry with correct-horse-7 failed") == "retry with <secret-1> failed"
    assert [entry.rule for entry in redactor.report()] == ["secrets seen elsewhere"]


def test_the_report_names_rule_count_and_line() -> None:
    redactor = Redactor()
    redactor.text("fine\napi_key=abcdef1234\nfine\napi_key=zzzzzz1234\n", "server.log")
    (entry,) = redactor.report()
    assert (entry.rule, entry.count, entry.places) == ("secrets by their name", 2, ("server.log:2", "server.log:4"))


def test_known_names_go_wherever_they_stand() -> None:
    redactor = Redactor(users=["jkim"], hosts=["gpubox7"])
    assert redactor.text("rank 0 of jkim on gpubox7, jkimmel stays") == "rank 0 of <user-1> on <host-1>, jkimmel stays"


@pytest.mark.parametrize(("name", "is_secret"), [
    ("HF_TOKEN", True), ("hf-token", True), ("pad_token_id", False), ("max_tokens", False), ("apiKey", True),
    ("tokenizer", False), ("AWS_ACCESS_KEY_ID", True), ("key", False), ("KV_CACHE_KEY", False), ("author", False),
    ("authToken", True), ("session_token", True), ("num_speculative_tokens", False), ("passwordless", False),
])  # fmt: skip
def test_names_that_hold_secrets(name: str, is_secret: bool) -> None:
    assert secret_name(name) is is_secret


def test_numbers_and_other_types_stay() -> None:
    value = {"max_tokens": 5, "ok": True, "nested": [1, None, {"token": "abcdefgh1"}]}
    redacted = Redactor().value(value, "report")
    assert redacted["max_tokens"] == 5
    assert msgspec.json.encode(redacted["nested"]) == b'[1,null,{"token":"<secret-1>"}]'
