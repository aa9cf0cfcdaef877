"""Train a Hugging Face classifier with its Trainer, track it, and ask which texts a prediction rests on.

Run: python examples/hugging_face.py [FOLDER]; needs ntkscope[text,trainer]. The network is a small BERT with fresh weights,
and the texts are made up, so nothing is downloaded. For an encoder with trained weights see minilm_cola.py.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import ntkscope as ns

WORDS = ["the", "a", "film", "play", "song", "was", "is", "really", "quite", "and", "it", "she", "said"]
GOOD, BAD = ["lovely", "great", "moving", "funny", "bright"], ["dull", "awful", "flat", "noisy", "grim"]
VOCABULARY = {word: number for number, word in enumerate(["[PAD]", *WORDS, *GOOD, *BAD])}


class Texts(Dataset):
    """Sentences of eight words, one of which says whether they are good (1) or bad (0)."""

    def __init__(self, count: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.labels = draw.integers(2, size=count)
        self.texts = [
            " ".join(draw.permutation([*draw.choice(WORDS, 7), draw.choice(GOOD if label else BAD)]))
            for label in self.labels
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor([VOCABULARY[word] for word in self.texts[index].split()])
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.tensor(int(self.labels[index])),
        }


def main(folder: str = "runs/hugging-face", epochs: int = 6) -> tuple[ns.Record, float, float]:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=16, **size))
    train, test = Texts(300, seed=1), Texts(60, seed=2)

    tracker = ns.Tracker(model, test, Path(folder, "training"), watch=("trntk", "alignment"), overhead=0.5)
    arguments = TrainingArguments(
        output_dir=str(Path(folder, "trainer")),
        num_train_epochs=epochs,
        per_device_train_batch_size=20,
        learning_rate=3e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    Trainer(model, arguments, train_dataset=train, callbacks=[tracker.hugging_face()]).train()

    inputs = {name: torch.stack([item[name] for item in train]) for name in ("input_ids", "attention_mask")}
    tested = {name: torch.stack([item[name] for item in test]) for name in ("input_ids", "attention_mask")}
    model.eval()
    with torch.no_grad():
        outputs, test_outputs = model(**inputs).logits, model(**tested).logits
    influence = ns.explain.influence(
        ns.kernel("trntk", model, inputs), ns.kernel("trntk", model, tested, inputs), outputs.double().numpy()
    )
    same = []
    for item, text in enumerate(test.texts):
        top = influence.top(item, 3).indices
        same.append(np.mean(train.labels[top] == test.labels[item]))
        if item < 3:
            print(text, *(f"    {train.texts[point]}" for point in top), sep="\n")
    accuracy = float((test_outputs.argmax(1).numpy() == test.labels).mean())
    print(f"test accuracy {accuracy:.0%}; {np.mean(same):.0%} of the three texts named first have the label")
    return ns.Record.open(Path(folder, "training")), accuracy, float(np.mean(same))


if __name__ == "__main__":
    main(*sys.argv[1:2])
