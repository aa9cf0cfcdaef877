"""Log-likelihoods of continuations: against sums written out token by token, padding, kernels, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ntkscope as ns
from ntkscope.core import UsageError
from ntkscope.models import ByteTokenizer, build, sequence_inputs, sequence_log_likelihood
from oracles import naive
from oracles.closeness import assert_kernel_close

VOCABULARY, CONTEXT = 11, 7
EXACT = 1e-10  # what float64 leaves
SINGLE = 1e-6  # … where a layer is computed in float32, as RMSNorm of Llama is
Inputs = dict[str, Tensor]


class Recurrent(nn.Module):
    """A plain language model with tied embeddings, which takes no mask and has no positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.cell = nn.GRU(6, 6, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.cell(self.embedding(ids))[0]) @ self.embedding.weight.T


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))


def llama() -> nn.Module:
    """Rotary positions, two heads that share keys and values, an untied readout."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(bos_token_id=0, eos_token_id=0, **sizes, **heads))


def own() -> nn.Module:
    return build("gpt", vocabulary=VOCABULARY, context=CONTEXT, width=8, depth=2, heads=2)


MODELS: list[Callable[[], nn.Module]] = [own, Recurrent, gpt2, llama]
everywhere = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


def tolerance(make: Callable[[], nn.Module]) -> float:
    return SINGLE if make is llama else EXACT


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """The model in float64 and evaluation mode, with weights large enough that outputs differ."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().double().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    return model


TEXTS = [([3, 1, 4], [1, 5]), ([2], [7, 1, 8, 2]), ([9, 10, 6, 5, 3], [5])]  # prompt and continuation


def padded(side: str, width: int = CONTEXT) -> Inputs:
    """The texts as inputs, padded on that side with a token that also occurs in texts."""
    rows: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "continuation": []}
    for prompt, continuation in TEXTS:
        empty = [0] * (width - len(prompt) - len(continuation))
        size = len(prompt) + len(continuation)
        for name, row, filler in (
            ("input_ids", prompt + continuation, [5] * len(empty)),
            ("attention_mask", [1] * size, empty),
            ("continuation", [0] * len(prompt) + [1] * len(continuation), empty),
        ):
            rows[name].append(row + filler if side == "right" else filler + row)
    return {name: torch.tensor(value) for name, value in rows.items()}


def token_by_token(model: nn.Module) -> list[list[Tensor]]:
    """log p of each token of each continuation: the model sees the tokens before it and nothing else."""
    rows = []
    for prompt, continuation in TEXTS:
        row = []
        for place, token in enumerate(continuation):
            output = model(torch.tensor([prompt + continuation[:place]]))
            values = (output if isinstance(output, Tensor) else output.logits)[0, -1]
            row.append(values[token] - values.exp().sum().log())
        rows.append(row)
    return rows


@everywhere
@pytest.mark.parametrize("side", ["right", "left"])
def test_it_is_the_sum_over_tokens(make: Callable[[], nn.Module], side: str) -> None:
    model, x = drawn(make), padded(side)
    each = token_by_token(model)
    total = torch.stack([torch.stack(row).sum() for row in each])[:, None]
    means = torch.stack([torch.stack(row).mean() for row in each])[:, None]
    assert_close(sequence_log_likelihood(model)(**x), total, rtol=1e-12, atol=1e-12)
    assert_close(sequence_log_likelihood(model, mean=True)(**x), means, rtol=1e-12, atol=1e-12)
    tokens = sequence_log_likelihood(model, tokens=5)(**x)
    assert tokens.shape == (3, 5)
    for row, expected in zip(tokens, each):
        assert_close(row[: len(expected)], torch.stack(expected), rtol=1e-12, atol=1e-12)
        assert not row[len(expected) :].any()


def test_without_masks_all_tokens_but_the_first_are_scored() -> None:
    model = drawn(own)
    ids = torch.tensor([prompt + [*continuation, 0, 1][: 7 - len(prompt)] for prompt, continuation in TEXTS[:1]])
    everything = torch.ones_like(ids)
    scored = everything.clone()
    scored[:, 0] = 0
    f = sequence_log_likelihood(model)
    assert torch.equal(f(ids), f(ids, everything, scored))
    assert torch.equal(f(ids), f(ids, everything))


def test_a_token_that_is_masked_inside_a_text_is_as_if_not_there() -> None:
    f, whole = sequence_log_likelihood(drawn(Recurrent)), torch.tensor([[3, 1, 4, 1]])
    holes = f(
        torch.tensor([[3, 9, 1, 4, 9, 1]]), torch.tensor([[1, 0, 1, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    )
    assert torch.equal(holes, f(whole, None, torch.tensor([[0, 1, 1, 1]])))


def test_padding_may_hold_any_number() -> None:
    f, x = sequence_log_likelihood(drawn(own)), padded("left")
    other = {**x, "input_ids": torch.where(x["attention_mask"] == 0, -100, x["input_ids"])}
    assert torch.equal(f(**other), f(**x))


# -- kernels -----------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("side", ["right", "left"])
def test_kernels_are_what_the_oracle_says(make: Callable[[], nn.Module], side: str) -> None:
    f, x = sequence_log_likelihood(drawn(make)), padded(side)
    for name in ("entk", "trntk", "trntk0", "pntk"):
        assert_kernel_close(ns.kernel(name, f, x).dense(), naive.kernel(name, f, x), tolerance(make))


@everywhere
def test_kernels_of_tokens_are_what_the_oracle_says(make: Callable[[], nn.Module]) -> None:
    f, x = sequence_log_likelihood(drawn(make), tokens=4), padded("right")
    for name in ("entk", "trntk", "trntk0", "pntk"):
        assert_kernel_close(ns.kernel(name, f, x).dense(), naive.kernel(name, f, x), tolerance(make))


@everywhere
def test_the_kernel_of_a_sum_is_the_sum_of_kernels_of_tokens(make: Callable[[], nn.Module]) -> None:
    model, x = drawn(make), padded("right")
    blocks = ns.kernel("entk", sequence_log_likelihood(model, tokens=4), x).dense().reshape(3, 4, 3, 4)
    assert_kernel_close(
        ns.kernel("trntk0", sequence_log_likelihood(model), x).dense(), blocks.sum((1, 3)), tolerance(make)
    )


def test_gradients_inside_torch_func() -> None:
    f, x = sequence_log_likelihood(drawn(own), tokens=4), padded("left")
    params = {key: value.detach() for key, value in f.named_parameters()}

    def one(params: dict[str, Tensor], row: Inputs) -> Tensor:
        return torch.func.functional_call(f, params, kwargs={key: value[None] for key, value in row.items()})[0].sum()

    fast = torch.func.vmap(torch.func.grad(one), (None, 0))(params, x)
    slow = torch.autograd.grad(f(**x)[1].sum(), list(f.parameters()))
    for (key, _), gradient in zip(f.named_parameters(), slow):
        assert_close(fast[key][1], gradient, rtol=1e-9, atol=1e-12)


def test_it_can_be_differentiated_twice() -> None:
    f, x = sequence_log_likelihood(drawn(own), mean=True), padded("right")
    parameters = list(f.parameters())
    first = torch.autograd.grad(f(**x).sum(), parameters, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
    step = [1e-6 * g for g in second]

    def squares(sign: int) -> Tensor:
        with torch.no_grad():
            for p, s in zip(parameters, step):
                p.add_(sign * s)
        value = torch.stack([g.square().sum() for g in torch.autograd.grad(f(**x).sum(), parameters)]).sum()
        with torch.no_grad():
            for p, s in zip(parameters, step):
                p.sub_(sign * s)
        return value

    slope = sum(float((g * s).sum()) for g, s in zip(second, step))
    assert float(squares(1) - squares(-1)) / 2 == pytest.approx(slope, rel=1e-4)  # central differences, error of step²


# -- what it leaves as it is, what it refuses --------------------------------------------------------------------------


def test_the_model_is_left_as_it_is() -> None:
    model = own().train()
    model.norm.eval()
    before = [module.training for module in model.modules()]
    f = sequence_log_likelihood(model)
    assert [module.training for module in model.modules()] == before
    assert f.training
    assert not sequence_log_likelihood(own().eval()).training
    assert f.model is model
    assert {id(p) for p in f.parameters()} == {id(p) for p in model.parameters()}


def test_half_precision_is_summed_in_single() -> None:
    f = sequence_log_likelihood(drawn(own).bfloat16())
    assert f(**padded("right")).dtype == torch.float32


def test_models_that_are_not_causal_are_refused() -> None:
    class Looks(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(ids.flip(1), VOCABULARY).double()

    with pytest.raises(UsageError, match="logits of Looks at a token change with the token after it"):
        sequence_log_likelihood(Looks())
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    sizes = {
        "vocab_size": 11,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    with pytest.raises(UsageError, match="BertForMaskedLM at a token change"):
        sequence_log_likelihood(transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).train())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), r"Linear could not be run on token ids of shape \(2, 2\)"),
        (nn.Embedding(1, 3), r"Embedding could not be run on token ids"),  # one token is no language
        (nn.Sequential(nn.Embedding(4, 3), nn.Flatten()), r"returned \(2, 6\).*expected \(2, 2, 'vocabulary'\)"),
    ],
)
def test_models_of_other_shapes_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sequence_log_likelihood(model)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IDS.double(),), r"ids of shape \(2, 3\) and torch.float64; expected whole numbers"),
        ((IDS[:, :1],), r"s ≥ 2"),
        ((IDS.tolist(),), "token ids of type list; expected a tensor"),
        ((IDS[0],), r"shape \(3,\)"),
        ((IDS, IDS[:, :2]), r"got attention_mask \(2, 2\); expected a tensor of shape \(2, 3\)"),
        ((IDS, [[1, 1, 1]] * 2), "got attention_mask list"),
        ((IDS, None, IDS), "continuation holds other numbers than 0 and 1, first in row 0 .2 rows.; expected a mask"),
        ((IDS, None, torch.tensor([[0, 1, 1], [1, 1, 1]])), r"nothing precedes it, first in row 1 \(1 rows\)"),
        (
            (IDS, torch.tensor([[1, 1, 1], [0, 1, 1]]), torch.tensor([[0, 1, 1], [0, 1, 1]])),
            "precedes it, first in row 1",
        ),
        ((IDS, None, torch.tensor([[0, 1, 1], [0, 0, 0]])), r"no token of the continuation is left, first in row 1"),
        ((IDS, torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([[0, 1, 1], [0, 0, 1]])), "is left, first in row 1"),
        ((IDS, torch.tensor([[1, 1, 1], [0, 0, 1]])), "is left, first in row 1"),
    ],
)
def test_bad_inputs_are_refused(inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sequence_log_likelihood(own())(*inputs)


def test_bad_options_are_refused() -> None:
    with pytest.raises(UsageError, match="mean=True with tokens=2"):
        sequence_log_likelihood(own(), mean=True, tokens=2)
    f = sequence_log_likelihood(own(), tokens=1)
    with pytest.raises(UsageError, match=r"a continuation is longer than tokens=1, first in row 0 \(2 rows\)"):
        f(IDS)
    with pytest.raises(UsageError, match="longer than tokens=1"):
        ns.kernel("trntk", f.eval(), IDS)


# -- texts as inputs ---------------------------------------------------------------------------------------------------


def test_bytes_and_back() -> None:
    tokenizer = ByteTokenizer()
    text = "naïve – 日本"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 256
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(text.encode()) == ids[1:]
    assert tokenizer.decode([*ids, 256]) == text
    assert tokenizer.decode(torch.tensor([195])) == "�"
    with pytest.raises(UsageError, match="expected one text at a time"):
        tokenizer(["a", "b"])


def test_texts_have_the_likelihood_of_their_bytes() -> None:
    """By the chain rule: log p(prompt) + log p(continuation | prompt) = log p(text), wherever the text is cut."""
    f = sequence_log_likelihood(drawn(lambda: build("gpt", width=8, depth=1, heads=2, context=24)))
    text = "the cat sat – there"
    whole = f(**sequence_inputs([text]))
    for at in (1, 5, 12):
        parts = sequence_inputs([("", text[:at]), (text[:at], text[at:])])
        assert_close(f(**parts).sum(0, keepdim=True), whole, rtol=1e-12, atol=1e-12)


class Words:
    """Words with the space before them as one token, as in GPT-2; two words in sequence that are known are one token."""

    def __init__(self, bos: int | None = None, adds: bool = False) -> None:
        self.bos_token_id, self.adds, self.ids = bos, adds, {"<s>": 0}

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        words, start = [], 0
        for place, letter in enumerate([*text[1:], " "], 1):
            if letter == " ":
                words.append(text[start:place])
                start = place
        ids = [self.ids.setdefault(word, len(self.ids)) for word in words if word]
        return {"input_ids": [self.bos_token_id] * (self.adds and add_special_tokens) + ids}


def test_boundaries_between_tokens() -> None:
    tokenizer = Words(bos=0, adds=True)
    x = sequence_inputs([("the cat", " sat down"), ("the", " dog")], tokenizer)
    assert x["input_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 5, 0, 0]]
    assert x["attention_mask"].int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert x["continuation"].int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]]


def test_a_token_across_the_boundary_is_refused_or_cut() -> None:
    tokenizer = Words(bos=0, adds=True)
    pairs = [("the", " dog"), ("the c", "at")]
    with pytest.raises(UsageError, match=r"texts\[1\]: a token crosses the boundary of 'the c' and 'at'.*apart=True"):
        sequence_inputs(pairs, tokenizer)
    x = sequence_inputs(pairs, tokenizer, apart=True)
    assert x["continuation"].int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


def test_a_real_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra [text]")
    transformers = pytest.importorskip("transformers", reason="needs the extra [text]")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(["the cat sat on the mat"] * 20, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>")
    x = sequence_inputs([("the cat", " sat")], tokenizer)
    tokens, scored = tokenizer.convert_ids_to_tokens(x["input_ids"][0]), x["continuation"][0].tolist()
    assert (tokens, scored) == (["the", "Ġcat", "Ġsat"], [False, False, True])
    with pytest.raises(UsageError, match="crosses the boundary of 'the cat ' and 'sat'"):
        sequence_inputs([("the cat ", "sat")], tokenizer)  # " sat" is one token
    with pytest.raises(UsageError, match=r"texts\[0\]: got a continuation that nothing precedes"):
        sequence_inputs(["the cat"], tokenizer)  # it begins with no token of its own
    assert sequence_inputs(["the cat"], tokenizer, start=0)["input_ids"][0, 0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "got no texts"),
        (("a text",), "expected a list"),
        (([3],), "texts"),
        (([("a", "b", "c")],), "texts"),
        (([("a", "")],), r"texts\[0\]: got no continuation in \('a', ''\)"),
        ((["a"], lambda text, add_special_tokens: 3), "the tokenizer returned int"),
        ((["a"], SimpleNamespace()), "tokenizer"),
    ],
)
def test_bad_texts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sequence_inputs(*arguments)


def test_texts_are_never_cut() -> None:
    with pytest.raises(UsageError, match=r"texts\[1\] has 6 tokens; expected at most length=4"):
        sequence_inputs(["ab", "abcde"], length=4)
    assert sequence_inputs(["ab"], length=4)["input_ids"].tolist() == [[256, 97, 98, 0]]
