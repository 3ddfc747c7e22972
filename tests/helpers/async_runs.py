"""Runs of TRL's `AsyncGRPOTrainer` on a CPU: the trainer, its worker and the worker's child are TRL's.

Two parts have stand-ins: TRL's attention, a kernel for GPUs; and the transfer of weights, which needs NCCL. So the
policy that samples never changes. Without the URL of a vLLM server, the server has a stand-in too, and a run has no
chance in it.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_models
import torch
import trl
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, async_rollout_worker


try:
    from trl.experimental.async_grpo import packing
except ImportError:  # an older TRL
    packing = None
RUNS = hasattr(packing, "_flash_attn")
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"  # the worker takes known templates alone
FIRST_DIGIT = 3  # the token of "0"


def live_for_thirds(completions: list[Any], number: list[int], **columns: Any) -> list[float]:
    """Return whether the answer's last digit is odd, on each third prompt; 0 for all answers on others."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(n % 3 == 0 and int(text[-1]) % 2) for text, n in zip(texts, number, strict=True)]


def last_is_digit(completions: list[Any], **columns: Any) -> list[float]:
    """Return whether the last character is a digit."""
    return [float(completion[0]["content"][-1:].isdigit()) for completion in completions]


def fails_at_twenty(completions: list[Any], number: list[int], **columns: Any) -> list[float]:
    """Return 0 for each answer, and fail on the prompt 20."""
    if 20 in number:
        raise ZeroDivisionError("prompt 20")
    return [0.0] * len(completions)


@contextmanager
def server() -> Iterator[str]:
    """Serve answers as vLLM does, and yield the URL. The n-th answer to a prompt is the same in each server."""
    asked: Counter[tuple[int, ...]] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = tuple(request["prompt"])
            asked[prompt] += 1
            token_ids = [FIRST_DIGIT + (sum(prompt) + i) % 10 for i in range(3)]
            token_ids += [FIRST_DIGIT + asked[prompt] % 10, 1]  # 1 ends the answer
            answer = {"token_ids": token_ids, "logprobs": {"token_logprobs": [-2.0] * len(token_ids)}}
            body = json.dumps({"choices": [answer]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


@contextmanager
def trainer(
    folder: Path, reward: Any = live_for_thirds, model: str | None = None, url: str | None = None, **options: Any
) -> Iterator[AsyncGRPOTrainer]:
    """Yield a trainer of a tiny model on 30 prompts, 8 rows a step in groups of 4."""
    tokenizer = tiny_models.chat_tokenizer()
    tokenizer.chat_template = TEMPLATE.read_text()
    rows = [{"prompt": [{"role": "user", "content": f"{i:02d}+1="}], "number": i, "answer": "-1"} for i in range(30)]
    base = {**tiny_models.BASE, "max_inflight_tasks": 1, "queue_maxsize": 4, "token_budget": 0, "learning_rate": 1e-2}
    stand_ins = (
        mock.patch.object(packing, "_flash_attn", return_value=_Attention),
        mock.patch.object(async_grpo_trainer, "get_peak_flops_per_device", return_value=1e12),
        mock.patch.object(async_rollout_worker, "is_vllm_available", return_value=True),
    )
    with nullcontext(url) if url else server() as url, stand_ins[0], stand_ins[1], stand_ins[2]:
        made = AsyncGRPOTrainer(
            model or tiny_models.model_path(folder),
            reward,
            AsyncGRPOConfig(**{**base, "output_dir": str(folder / "run"), "vllm_server_base_url": url, **options}),
            Dataset.from_list(rows),
            processing_class=tokenizer,
            weight_transfer=_NoTransfer(),
        )
        try:
            yield made
        finally:
            made.rollout_worker.stop()


class _NoTransfer:
    """A transfer of weights that does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Attention:
    """The function of the kernel that TRL calls, in PyTorch."""

    @staticmethod
    def flash_attn_varlen_func(
        query: Tensor, key: Tensor, value: Tensor, starts_q: Tensor, starts_k: Tensor, *longest: Any, **options: Any
    ) -> Tensor:
        outputs = []
        queries, keys = (starts[:-1].tolist() for starts in (starts_q, starts_k))
        for first_q, end_q, first_k, end_k in zip(
            queries, starts_q[1:].tolist(), keys, starts_k[1:].tolist(), strict=True
        ):
            mask = torch.ones(end_q - first_q, end_k - first_k, dtype=torch.bool)
            mask = mask.tril(mask.shape[1] - mask.shape[0])
            heads = [
                rows.transpose(0, 1).unsqueeze(0)
                for rows in (query[first_q:end_q], key[first_k:end_k], value[first_k:end_k])
            ]
            attended = scaled_dot_product_attention(
                *heads, attn_mask=mask, scale=options["softmax_scale"], enable_gqa=True
            )
            outputs.append(attended[0].transpose(0, 1))
        return torch.cat(outputs)
