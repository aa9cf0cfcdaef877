"""The engine on large public architectures on one CUDA device: error on four inputs, seconds, peak memory, certificates.

    python -m benchmarks.gpu.engine --out FOLDER [--only NAME]… [--device cuda] [--tiny]

Weights are random. Every network gets: the exact trace-NTK of four inputs (float32, some outputs) against plain autograd in
float64, one sample and output after another; then a timed run. `resnet50-all` is all 1,000 outputs of 16 images, also with
`OutputSketch(16)`; `bert-kept` the second call of a kept engine on 64 sentences. One json per network, written as it ends.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine
from benchmarks.outcome import plain
from ntkscope.core.script import run_script

INPUTS = 4
TOLERANCE = 1e-5
VISION = ("resnet50", "vit_b_16", "convnext_tiny", "swin_t", "efficientnet_b0")


def vision(name: str, n: int, tiny: bool) -> tuple[nn.Module, Any]:
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None).eval()
    return model, torch.randn(n, 3, 224, 224)


def text(name: str, n: int, tiny: bool, tokens: int = 32) -> tuple[nn.Module, Any]:
    import transformers as hf

    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if name == "bert":
        config = hf.BertConfig(num_labels=2, **(small if tiny else {}))
        model: nn.Module = hf.BertForSequenceClassification(config)
    elif name == "gpt2":
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 2} if tiny else {}
        model = hf.GPT2ForSequenceClassification(hf.GPT2Config(num_labels=10, pad_token_id=0, **shape))
    else:
        shape = {
            "hidden_size": 1024,
            "num_hidden_layers": 15,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 2816,
            "vocab_size": 32000,
        }
        shape |= {**small, "num_key_value_heads": 2, "vocab_size": 100} if tiny else {}
        model = hf.LlamaForSequenceClassification(hf.LlamaConfig(num_labels=10, pad_token_id=0, **shape))
    ids = torch.randint(5, 90, (n, tokens))
    return model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def build(name: str, n: int, tiny: bool, device: str) -> tuple[nn.Module, Any]:
    model, x = (vision if name in VISION else text)(name, n, tiny)
    moved = {key: value.to(device) for key, value in x.items()} if isinstance(x, dict) else x.to(device)
    return model.to(device), moved


def first(x: Any, rows: slice) -> Any:
    return {key: value[rows] for key, value in x.items()} if isinstance(x, dict) else x[rows]


def naive(model: nn.Module, x: Any, outputs: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """`Σ_c <g_c(x_i), g_c(x_j)>` by plain autograd in `dtype`, one sample and one output at a time."""
    model = model.to(dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    n = len(next(iter(x.values())) if isinstance(x, dict) else x)
    values = []
    for i in range(n):
        one = first(x, slice(i, i + 1))
        out = model(**one).logits if isinstance(x, dict) else model(one.to(dtype))
        values.append(out[0])
    total = torch.zeros(n, n, dtype=torch.float64)
    for c in outputs:
        rows = [torch.autograd.grad(v[c], parameters, retain_graph=True, allow_unused=True) for v in values]
        for i in range(n):
            for j in range(i, n):
                product = sum(float((a.double() * b.double()).sum()) for a, b in zip(rows[i], rows[j]) if a is not None)
                total[i, j] = total[j, i] = total[i, j] + product
    return total


def timed(work: Callable[[], Any], device: str, *, fresh: bool = True) -> tuple[float, Any, int]:
    """Seconds, the result, and the most bytes allocated besides what was there before.

    `fresh`: PyTorch's allocator gives back what it kept, as for the first call of a process; a later call finds it warm.
    """
    cuda = device.startswith("cuda")
    if cuda:
        if fresh:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    start = time.perf_counter()
    result = work()
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, result, torch.cuda.max_memory_allocated() - before if cuda else 0


def described(K: Any) -> dict[str, Any]:
    shares = (
        {method: K.coverage.share(method) for method in sorted(set(K.coverage.methods.values()))} if K.coverage else {}
    )
    return {
        "certificate": K.certificate.to_json(),
        "methods": shares,
        "func": K.coverage.func_method if K.coverage else "",
    }


def exactness(name: str, device: str, tiny: bool, memory: str) -> dict[str, Any]:
    """Four inputs, some outputs: ours in float32 against float64 autograd; then eight inputs timed."""
    model, x = build(name, 8, tiny, device)
    few = first(x, slice(0, INPUTS))
    width = len((model(**first(x, slice(0, 1))).logits if isinstance(x, dict) else model(first(x, slice(0, 1))))[0])
    outputs = sorted({0, width // 3, width // 2, width - 1})
    record: dict[str, Any] = {
        "network": name,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "outputs": width,
        "outputs compared": outputs,
    }
    seconds, K, peak = timed(lambda: ns.kernel("trntk0", model, few, outputs=outputs, memory=memory), device)
    record |= {"seconds of four": seconds, "peak bytes of four": peak, "memory": memory, **described(K)}
    ours = K.dense().double().cpu()
    some = list(range(min(width, 100)))
    seconds, K, peak = timed(lambda: ns.kernel("trntk0", model, x, outputs=some, memory=memory), device)
    record |= {"seconds of eight": seconds, "outputs of eight": len(some), "peak bytes of eight": peak}
    record["certificate of eight"] = K.certificate.to_json()
    plain32 = naive(model, few, outputs, torch.float32)
    wide = ns.kernel("trntk0", model, few, outputs=outputs, memory=memory, dtype=torch.float64).dense().double().cpu()
    truth = naive(model, few, outputs)

    def error(K: Tensor) -> float:
        return float((K - truth).abs().max() / truth.abs().max())

    return record | {
        "relative error": error(ours),
        "relative error of plain float32 autograd": error(plain32),
        "relative error in float64": error(wide),
        "holds": error(ours) <= TOLERANCE,
    }


def all_outputs(device: str, tiny: bool, memory: str) -> dict[str, Any]:
    """ResNet-50, 16 images, all 1,000 outputs, exact and by 16 random combinations."""
    model, x = build("resnet50", 16, tiny, device)
    exact, K, peak = timed(lambda: ns.kernel("trntk0", model, x, memory=memory), device)
    record = {
        "network": "resnet50",
        "images": 16,
        "outputs": 1000,
        "seconds": exact,
        "peak bytes": peak,
        "memory": memory,
    }
    record |= described(K)
    truth = K.dense().double()
    sketched, S, peak = timed(lambda: ns.kernel("trntk0", model, x, memory=memory, outputs=ns.OutputSketch(16)), device)
    again, S, _ = timed(lambda: ns.kernel("trntk0", model, x, memory=memory, outputs=ns.OutputSketch(16)), device)
    error = (S.dense().double() - truth).abs() / S.meta["error"]["standard_error"].double()
    return record | {
        "sketch seconds": [sketched, again],
        "sketch ratio": exact / min(sketched, again),
        "sketch peak bytes": peak,
        "sketch relative error": float((S.dense().double() - truth).norm() / truth.norm()),
        "sketch stated error": S.meta["error"]["relative"],
        "sketch share within two standard errors": float((error <= 2.13).double().mean()),  # t with 15 degrees, 95 %
        "holds": exact / min(sketched, again) >= 20,
    }


def kept(device: str, tiny: bool, memory: str) -> dict[str, Any]:
    """BERT-base, 64 sentences of 32 tokens: the first call of `ns.kernel`, and later calls of a kept `Tangent`."""
    model, x = build("bert", 64, tiny, device)
    once = [timed(lambda: ns.kernel("trntk0", model, x, memory=memory), device)[0] for _ in range(3)]
    tangent = ns.Tangent(model, x, memory=memory)
    runs = [timed(lambda: tangent.kernel("trntk0", x), device, fresh=False) for _ in range(8)]
    later = [seconds for seconds, _, _ in runs[1:]]
    bare = ns.Tangent(model, x, memory=memory, certify=False)
    without = [timed(lambda: bare.kernel("trntk0", x), device, fresh=False)[0] for _ in range(5)][1:]
    return {
        "network": "bert-base",
        "sentences": 64,
        "tokens": 32,
        "ns.kernel seconds": once,
        "kept seconds": later,
        "kept without certificates": without,
        "median": statistics.median(later),
        "peak bytes": runs[-1][2],
        "memory": memory,
        **described(runs[-1][1]),
        "holds": statistics.median(later) <= 0.35,
    }


def main(
    out: Annotated[Path, typer.Option(help="Folder for the records.")],
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; all unless given.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cuda",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "32GiB",
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Small texts on a CPU: tries the machinery, proves nothing.")
    ] = False,
) -> int:
    out.mkdir(parents=True, exist_ok=True)
    names = [*VISION, "gpt2", "llama", "bert-kept", "resnet50-all"]
    failed = 0
    for name in only or names:
        start = time.perf_counter()
        try:
            if name == "bert-kept":
                record = kept(device, tiny, memory)
            elif name == "resnet50-all":
                record = all_outputs(device, tiny, "96GiB")
            else:
                record = exactness(name, device, tiny, memory)
        except Exception as error:  # one network must not cost the others
            record = {"network": name, "failed": f"{type(error).__name__}: {error}", "holds": False}
        record |= {"machine": machine.describe(), "wall seconds": time.perf_counter() - start}
        (out / f"{name}.json").write_text(json.dumps(plain(record), indent=1))
        print(json.dumps({k: v for k, v in plain(record).items() if k != "machine"}), flush=True)
        failed += not record["holds"]
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.engine", __doc__))
