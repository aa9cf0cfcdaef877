"""Small networks of many architectures, built offline from their configurations with random weights.

`architectures()` gives them all: this package's own, Hugging Face classifiers for text, images and sound, Hugging Face
bodies under a pooled head, adapters (peft) and torchvision where those are installed, and the exact cases of the test zoo.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import ROOT

TESTS = ROOT / "tests"
N, LENGTH, WORDS, IMAGE, LABELS = 4, 8, 50, 32, 3
LARGEST = 3_000_000  # parameters; a configuration that stays larger was not made small
Built = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Architecture:
    """A name, where it comes from, and a builder of `(model, inputs)` with four inputs."""

    name: str
    family: str
    build: Callable[[], Built]


# Whatever a configuration calls its sizes; a configuration takes those it knows.
TINY: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim"), 16),
    **dict.fromkeys(("word_embed_proj_dim", "embedding_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "num_heads", "n_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_decoder_layers", "type_vocab_size"), 2),
    **dict.fromkeys(("intermediate_size", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff"), 24),
    **dict.fromkeys(("d_inner", "dff", "hidden_dim"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("head_dim", "d_head", "d_kv", "kv_lora_rank", "q_lora_rank", "v_head_dim", "embed_dim"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "attention_window", "window_size"), 4),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "sliding_window", "patch_size"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "max_window_layers"), 1),
    "num_experts_per_tok": 2,
    "attention_types": [[["global", "local"], 1]],
    "attention_type": "original_full",
    "vocab_size": WORDS,
    "image_size": IMAGE,
    "num_channels": 3,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "initializer_range": 0.2,
    "use_cache": False,
    "classifier_dropout": 0.0,
}
LABELLED = {"num_labels": LABELS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}

TEXT = """
albert arcee bart bert big_bird bigbird_pegasus biogpt bloom camembert canine convbert ctrl data2vec-text deberta
deberta-v2 deepseek_v2 deepseek_v3 diffllama distilbert doge electra ernie esm eurobert exaone4 falcon flaubert fnet
gemma gemma2 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj helium hunyuan_v1_dense
hunyuan_v1_moe ibert jamba jetmoe layoutlm llama longformer markuplm mbart megatron-bert minimax ministral mistral
mixtral mobilebert modernbert modernbert-decoder mpnet mpt mra mt5 mvp nemotron nystromformer olmo olmo2 olmo3
openai-gpt opt persimmon phi phi3 phimoe plbart qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next rembert roberta
roberta-prelayernorm roformer seed_oss smollm3 squeezebert stablelm starcoder2 t5 umt5 xlm xlm-roberta
xlm-roberta-xl xlnet yoso
"""

_WINDOWS = {"depths": [1, 1], "num_heads": [1, 2], "window_size": 2}
_ATTENTION = {"num_attention_heads": [1, 1, 2, 2]}
_PART = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_TWO_TOWERS = {
    "vision_config": {**_PART, "image_size": IMAGE, "patch_size": 8},
    "text_config": {**_PART, "vocab_size": WORDS},
}
PLAIN_IMAGES = """
beit convnext convnextv2 data2vec-vision dinov2 dinov2_with_registers focalnet ijepa mobilenet_v2 mobilevit poolformer regnet
resnet swiftformer vit vit_msn
"""
IMAGES: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in PLAIN_IMAGES.split()},
    **dict.fromkeys(("swin", "swinv2", "donut-swin"), _WINDOWS),
    **dict.fromkeys(("pvt", "pvt_v2", "segformer"), _ATTENTION),
    **dict.fromkeys(("clip", "metaclip_2", "siglip"), _TWO_TOWERS),
    "bit": {"num_groups": 2, "embedding_size": 8},
    "deit": {"architectures": ["DeiTForImageClassification"]},
    "mobilenet_v1": {"depth_multiplier": 0.25},
}
_WAVES = {
    "conv_dim": [8, 8, 8],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
}
SOUNDS: dict[str, dict[str, Any]] = dict.fromkeys(
    ("hubert", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer", "wavlm"), _WAVES
) | {
    "data2vec-audio": {**_WAVES, "conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2},
    "audio-spectrogram-transformer": {"max_length": 16, "num_mel_bins": 16, "patch_size": 4},
}
BODIES: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "falcon_mamba": {"state_size": 4},
    "mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 1, "chunk_size": 4},
    "rwkv": {"context_length": 16, "attention_hidden_size": 16},
    "cohere": {},
    "granite": {},
    "glm4_moe": {"n_shared_experts": 1},
    "recurrent_gemma": {"lru_width": 16, "attention_window_size": 4, "block_types": ["recurrent", "attention"]},
    "xglm": {"attention_heads": 2},
    "clip_text_model": {},
    "splinter": {},
}
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "DoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"], "use_dora": True}),
    "rsLoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"], "use_rslora": True}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 4, "target_modules": ["q_proj", "v_proj"], "total_step": 10}),
    "LoHa": ("LoHaConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "LoKr": ("LoKrConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "OFT": ("OFTConfig", {"oft_block_size": 4, "target_modules": ["q_proj", "v_proj"]}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4, "target_modules": ["q_proj", "v_proj"]}),
    "HRA": ("HRAConfig", {"r": 2, "target_modules": ["q_proj", "v_proj"]}),
    "VeRA": ("VeraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 8, "target_modules": ["q_proj", "v_proj"]}),
    "IA3": ("IA3Config", {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "layer norm tuning": ("LNTuningConfig", {"target_modules": ["input_layernorm", "post_attention_layernorm"]}),
    "prefix tuning": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
    "prompt tuning": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
    "p-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
}
TORCHVISION = """
alexnet vgg11 vgg11_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1
shufflenet_v2_x0_5 mobilenet_v2 mobilenet_v3_small mnasnet0_5 efficientnet_b0 efficientnet_v2_s regnet_x_400mf
regnet_y_400mf convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t googlenet inception_v3
"""
OWN: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": ({"in_features": 10, "widths": [16, 16], "classes": LABELS}, (10,)),
    "mlp, NTK parametrisation": ({"in_features": 10, "widths": [16, 16], "classes": LABELS, "ntk": True}, (10,)),
    "lenet": ({}, (1, 28, 28)),
    "alexnet": ({"classes": LABELS}, (3, 64, 64)),
    "small_cnn": ({"image_size": 8, "classes": LABELS}, (1, 8, 8)),
    "poison_cnn": ({}, (3, 32, 32)),
    "resnet18": ({"width": 0.125, "classes": LABELS}, (3, 16, 16)),
    "resnet34": ({"width": 0.125, "classes": LABELS}, (3, 16, 16)),
    "resnet20": ({}, (3, 16, 16)),
    "resnet56": ({}, (3, 16, 16)),
    "mobilenetv2": ({"width": 0.25, "classes": LABELS}, (3, 16, 16)),
    "quadratic": ({"in_features": 10, "width": 8, "classes": LABELS}, (10,)),
}


class Pooled(nn.Module):
    """A body that gives hidden states, their mean over positions that are not padding, a linear head."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, LABELS)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.body(input_ids=input_ids).last_hidden_state
        return self.head(states.mean(1))


def configuration(kind: str, more: dict[str, Any]) -> Any:
    """The configuration of a Hugging Face model type with every size it knows made small."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]
    known = {*inspect.signature(config.__init__).parameters, *getattr(config, "__dataclass_fields__", {})}
    if "num_heads" in known and kind in ("t5", "umt5", "mt5"):
        more = {"decoder_start_token_id": 0, **more}
    sizes = {key: value for key, value in TINY.items() if key in known}
    return config(**{**sizes, **LABELLED, **more})


def small(make: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """The model of a configuration, refused before it takes memory when it is not small."""
    with torch.device("meta"):
        numbers = sum(p.numel() for p in make(config).parameters())
    if numbers > LARGEST:
        raise ValueError(
            f"{type(config).__name__} gives {numbers} parameters, expected at most {LARGEST}: set its sizes"
        )
    return make(config).eval()


def text_inputs() -> dict[str, Tensor]:
    """Four texts that hold the end token; one is padded."""
    words, mask = torch.randint(3, WORDS, (N, LENGTH)), torch.ones(N, LENGTH, dtype=torch.long)
    words[:, 5], words[2, 6:], mask[2, 6:] = 2, 0, 0
    return {"input_ids": words, "attention_mask": mask}


def hugging_face(kind: str, task: str, more: dict[str, Any]) -> Built:
    import transformers

    auto = getattr(transformers, f"AutoModelFor{task}Classification")
    model = small(auto.from_config, configuration(kind, more))
    if task == "Sequence":
        return model, text_inputs()
    if task == "Image":
        return model, {"pixel_values": torch.randn(N, 3, IMAGE, IMAGE)}
    shape = (N, 16, 16) if kind == "audio-spectrogram-transformer" else (N, 400)
    return model, {"input_values": torch.randn(shape)}


def body(kind: str, more: dict[str, Any]) -> Built:
    import transformers

    config = configuration(kind, more)
    width = next(getattr(config, key) for key in ("hidden_size", "d_model", "n_embd") if hasattr(config, key))
    model = small(lambda c: Pooled(transformers.AutoModel.from_config(c), width), config)
    return model, {"input_ids": text_inputs()["input_ids"]}


def adapter(name: str, options: dict[str, Any]) -> Built:
    import peft

    base, inputs = hugging_face("llama", "Sequence", {})
    model = peft.get_peft_model(base, getattr(peft, name)(task_type="SEQ_CLS", **options))
    with torch.no_grad():  # fresh adapters are zero and would show nothing
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), inputs


def vision(name: str) -> Built:
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=LABELS)
    size = 299 if name == "inception_v3" else 224 if name in ("vit_b_16", "maxvit_t") else 64
    return model.eval(), torch.randn(N, 3, size, size)


def own(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> Built:
    import ntkscope as ns

    return ns.models.build(name.partition(",")[0], **options).eval(), torch.randn(N, *shape)


def first_four(make: Callable[[], Built]) -> Built:
    model, inputs = make()
    if isinstance(inputs, Tensor):
        return model, inputs[:N]
    if isinstance(inputs, dict):
        return model, {key: value[:N] for key, value in inputs.items()}
    return model, tuple(value[:N] for value in inputs)


def zoo_cases() -> Iterator[Architecture]:
    """The zoo's exact cases of layers and blocks, for the trace-NTK with default options."""
    if not (TESTS / "zoo").is_dir():
        return
    sys.path.insert(0, str(TESTS))
    from zoo.catalogue import CASES

    for case in CASES.values():
        plain = case.kernel == "trntk0" and not case.options and case.samples is None and case.rows is None
        if case.expect == "exact" and case.family == "unseen" and plain:
            yield Architecture(case.name, "zoo", partial(first_four, case.make))


def architectures() -> Iterator[Architecture]:
    """All of them; families whose library is not installed are left out."""
    for name, (options, shape) in OWN.items():
        yield Architecture(name, "ntkscope", partial(own, name, options, shape))
    if importlib.util.find_spec("transformers"):
        for kind in TEXT.split():
            yield Architecture(kind, "transformers, text", partial(hugging_face, kind, "Sequence", {}))
        for kind, more in IMAGES.items():
            yield Architecture(kind, "transformers, images", partial(hugging_face, kind, "Image", more))
        for kind, more in SOUNDS.items():
            yield Architecture(kind, "transformers, sound", partial(hugging_face, kind, "Audio", more))
        for kind, more in BODIES.items():
            yield Architecture(kind, "transformers, pooled", partial(body, kind, more))
        if importlib.util.find_spec("peft"):
            for name, (config, options) in ADAPTERS.items():
                yield Architecture(name, "peft on Llama", partial(adapter, config, options))
    if importlib.util.find_spec("torchvision"):
        for name in TORCHVISION.split():
            yield Architecture(name, "torchvision", partial(vision, name))
    yield from zoo_cases()
