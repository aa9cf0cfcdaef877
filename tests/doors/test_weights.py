"""Bad weights: files that claim more than they hold, that would call more than tensors need, or are something else."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch._utils import _rebuild_tensor_v2

from doors.bounds import NODES, bounded, exits_2, refused
from ntkscope.core.errors import DataCorrupt, UnsafeData
from ntkscope.models import read_weights
from ntkscope.models.text import check_config
from ntkscope.training.snapshots import FORMAT, load_snapshot
from ntkscope.training.store import SnapshotStore


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


GOOD = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3)}


class Calls:
    """Pickles as a call of something, with arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def archive(pickled: bytes, *, storage: bytes = b"\0" * 24, compress: int = zipfile.ZIP_STORED, **more: bytes) -> bytes:
    """A PyTorch archive with another pickle inside."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as made:
        made.writestr("archive/data.pkl", pickled)
        made.writestr("archive/byteorder", b"little")
        made.writestr("archive/data/0", storage)
        made.writestr("archive/version", b"3\n")
        for name, content in more.items():
            made.writestr(name, content)
    return out.getvalue()


def pickled(
    numel: int = 6, size: str = "(K\x02K\x03t", stride: str = "(K\x03K\x01t", kind: str = "FloatStorage", key: str = "0"
) -> bytes:
    """The pickle of `{"w": tensor}` with numbers of our choice."""
    number = b"\x8a\x08" + numel.to_bytes(8, "little", signed=True)
    name = key.encode()
    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"
        + kind.encode() + b"\nX" + len(name).to_bytes(4, "little") + name + b"X\x03\x00\x00\x00cpu" + number
        + b"tQK\x00" + size.encode("latin1") + stride.encode("latin1") + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


LARGE = "\x8a\x06\x00\x00\x00\x00\x00\x01"  # 2^40
TORCH: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"weights",
    "zeros": lambda: b"\0" * 1000,
    "half an archive": lambda: saved(GOOD)[:-60],
    "head of an archive": lambda: saved(GOOD)[:40],
    "changed in the middle": lambda: saved(GOOD)[:200] + b"\xff" * 100 + saved(GOOD)[300:],
    "deflated": lambda: archive(pickled(), storage=b"\0" * 24, compress=zipfile.ZIP_DEFLATED),
    "deflated gigabytes": lambda: archive(
        pickled(1 << 24), storage=b"\0" * (1 << 26), compress=zipfile.ZIP_DEFLATED
    ),
    "a storage of 2^40 numbers": lambda: archive(pickled(1 << 40)),
    "a storage one number too long": lambda: archive(pickled(7)),
    "a storage of -1 numbers": lambda: archive(pickled(-1)),
    "a storage that is not there": lambda: archive(pickled(key="1")),
    "a storage elsewhere": lambda: archive(pickled(key="../data.pkl")),
    "a storage of unknown type": lambda: archive(pickled(kind="SecretStorage")),
    "a storage of no storage type": lambda: archive(pickled(kind="Tensor")),
    "stride 0, 2^40 numbers": lambda: archive(pickled(size=f"({LARGE}K\x02t", stride="(K\x00K\x00t")),
    "stride 0, a few": lambda: archive(pickled(size="(K\x64K\x64t", stride="(K\x00K\x00t")),
    "overlapping rows": lambda: archive(pickled(size="(K\x64K\x03t", stride="(K\x00K\x01t")),
    "larger than its storage": lambda: archive(pickled(size="(K\x64K\x64t", stride="(K\x64K\x01t")),
    "negative size": lambda: archive(pickled(size="(J\xff\xff\xff\xffK\x03t")),
    "negative stride": lambda: archive(pickled(stride="(J\xff\xff\xff\xffK\x01t")),
    "no data.pkl": lambda: archive(b"").replace(b"data.pkl", b"Data.txt"),
    "two folders": lambda: archive(pickled(), **{"other/data.pkl": b"x"}),
    "two names alike": lambda: archive(pickled(), **{"archive/DATA.pkl": pickle.dumps(1, 2)}),
    "a text": lambda: saved("weights"),
    "numbers": lambda: saved({"w": 3, "b": [1.0]}),
    "a list": lambda: saved([torch.zeros(2)]),
    "nothing": lambda: saved(None),
    "NaN": lambda: saved({"w": torch.tensor([float("nan")])}),
    "infinity": lambda: saved({"w": torch.tensor([float("inf")])}),
    "sparse": lambda: saved({"w": torch.eye(3).to_sparse()}),
    "on no device": lambda: saved({"w": torch.zeros(1 << 40, device="meta")}),
    "bytearray": lambda: saved({"w": Calls(bytearray, 1 << 40)}),
    "bytearray, legacy": lambda: saved({"w": Calls(bytearray, 1 << 40)}, _use_new_zipfile_serialization=False),
    "a tensor by its size": lambda: saved({"w": Calls(torch.FloatTensor, 1 << 40)}),
    "a storage by its size": lambda: saved({"w": Calls(torch.UntypedStorage, 1 << 40)}),
    "a tensor by a type": lambda: saved(
        {"w": Calls(torch._tensor._rebuild_from_type_v2, torch.FloatTensor, torch.Tensor, (1 << 40,), {})}
    ),
    "code": lambda: saved({"w": Calls(os.mkdir, "ran")}),
    "code, legacy": lambda: saved({"w": Calls(os.mkdir, "ran")}, _use_new_zipfile_serialization=False),
    "code, pickle": lambda: pickle.dumps(Calls(os.mkdir, "ran"), 2),
    "a whole module": lambda: saved(torch.nn.Linear(2, 2)),
    "eval": lambda: archive(b"c__builtin__\neval\n(X\x04\x00\x00\x001+1tR."),
    "an unknown persistent id": lambda: archive(b"\x80\x02(X\x06\x00\x00\x00moduleNtQ."),
    "a persistent text": lambda: archive(b"\x80\x02X\x01\x00\x00\x00aQ."),
    "tuples in tuples": lambda: archive(b"\x80\x02}" + b"(" * 100_000 + b"N" + b"t" * 100_000 + b"Ns."),
    "tuples in tuples, one by one": lambda: archive(b"\x80\x02}N" + b"\x85" * 2_000_000 + b"Ns."),
    "tuples in tuples, legacy": lambda: b"\x80\x02}N" + b"\x85" * 2_000_000 + b"Ns.",
    "lists in lists": lambda: archive(b"\x80\x02" + b"](" * 50_000 + b"e" * 50_000 + b"."),
    "marks without end": lambda: archive(b"\x80\x02" + b"(" * 1_000_000),
    "an instruction too many": lambda: archive(b"\x80\x02t."),
    "the extension registry": lambda: archive(b"\x80\x02\x82\x01."),
    "a text of 4 GiB": lambda: archive(b"\x80\x02X\xff\xff\xff\xffabc."),
    "no end": lambda: archive(pickled()[:-1]),
    "texts encoded again and again": lambda: archive(
        b"\x80\x02c_codecs\nencode\nq\x00X" + (1 << 16).to_bytes(4, "little") + b"a" * (1 << 16)
        + b"q\x01X\x06\x00\x00\x00latin1q\x02(" + b"h\x00h\x01h\x02\x86R" * 2_000 + b"l."
    ),
    "legacy storage of 2^40": lambda: saved({"w": torch.zeros(1000)}, _use_new_zipfile_serialization=False).replace(
        b"M\xe8\x03N", b"J\xff\xff\xff\x7fN"
    ),
    "legacy, half": lambda: saved(GOOD, _use_new_zipfile_serialization=False)[:-20],
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_pytorch_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pt"
    path.write_bytes(TORCH[name]())
    refused(lambda: read_weights(path))
    assert not (tmp_path / "ran").exists()


def test_canary_what_is_sound_is_read(tmp_path: Path) -> None:
    """The tables above start from these."""
    path = tmp_path / "w.pt"
    for data in (saved(GOOD), saved(GOOD, _use_new_zipfile_serialization=False), archive(pickled())):
        path.write_bytes(data)
        assert read_weights(path)["w"].shape == (2, 3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = {
        "state": {0: {"step": torch.tensor(1.0), "exp_avg": GOOD["w"]}},
        "param_groups": [{"betas": (0.9, 0.99)}],
    }
    tied = {"a": GOOD["w"], "b": GOOD["w"], "view": GOOD["w"][0], "row": GOOD["w"].t(), "empty": torch.zeros(0, 3)}
    half = {"h": torch.zeros(2).half(), "b": torch.zeros(2).bfloat16(), "c": torch.zeros(2, dtype=torch.complex64)}
    new = {"p": torch.nn.Parameter(torch.ones(2)), "u": torch.ones(2, dtype=torch.uint16)}
    for state in (model.state_dict(), {"state_dict": model.state_dict(), "optimizer": optimizer, "epoch": 3},
                  tied, half, new, OrderedDict(GOOD), {"f": torch.zeros(2).to(torch.float8_e4m3fn)}):  # fmt: skip
        torch.save(state, path)
        assert read_weights(path)
    attribute = torch.ones(2)
    attribute.note = "mine"  # type: ignore[attr-defined]
    torch.save({"a": attribute}, path)
    assert read_weights(path)
    assert _rebuild_tensor_v2 is not None


def tensors(header: bytes, body: bytes = b"\0" * 24) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def described(**changes: Any) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}).encode()


SAFE: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "no header": tensors(b""),
    "header of 2^60 bytes": (1 << 60).to_bytes(8, "little") + b"{}",
    "header of 60 GB": (60 << 30).to_bytes(8, "little") + b"{}" * 100,
    "header past the end": (200).to_bytes(8, "little") + b"{}",
    "not JSON": tensors(b"{weights}"),
    "a list": tensors(b"[]"),
    "nested": tensors(b"[" * 100_000),
    "no shape": tensors(b'{"w": {"dtype": "F32", "data_offsets": [0, 24]}}'),
    "unknown type": tensors(described(dtype="F99")),
    "negative shape": tensors(described(shape=[-2, -3])),
    "huge shape": tensors(described(shape=[1 << 40, 1 << 40])),
    "larger shape": tensors(described(shape=[2, 4])),
    "offsets past the end": tensors(described(data_offsets=[0, 2400], shape=[600])),
    "offsets of 2^60": tensors(described(data_offsets=[0, 1 << 60], shape=[1 << 58])),
    "offsets swapped": tensors(described(data_offsets=[24, 0])),
    "too few bytes": tensors(described(), b"\0" * 20),
    "too many bytes": tensors(described(), b"\0" * 30),
    "two tensors in one place": tensors(
        b'{"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]},'
        b' "b": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}'
    ),
    "NaN": tensors(described(), b"\xff" * 24),
    "a pickle": pickle.dumps(GOOD),
    "an archive": saved(GOOD),
}


@pytest.mark.parametrize("name", SAFE)
def test_safetensors_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "w.safetensors").write_bytes(SAFE[name])
    refused(lambda: read_weights(tmp_path / "w.safetensors"))
    refused(lambda: load_snapshot(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", [name for name in NODES if name != "link to itself"])
def test_something_else_in_place_of_the_file(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"w{suffix}"
    NODES[kind](path)
    refused(lambda: read_weights(path))
    exits_2(
        "kernel", "ck", "--model", "mlp", "--weights", str(path), "--data", "digits", "--out", str(tmp_path / "k.npy")
    )


HEADER = {"format": FORMAT, "step": "3", "epoch": "1.0", "metrics": "{}", "random": "{}"}
WRONG = {
    "format": ("", "ntkscope snapshot 9"),
    "step": ("", "x", "-1", "null", "1.5", "[]", str(10**30), "[" * 5000),
    "epoch": ("", "x", "null", "[]", "-1"),
    "metrics": ("", "[]", "3", '{"a": "x"}', '{"a": [1]}', '{"a":' * 3000),
    "random": ("", "[]", "3", "null"),
}


@pytest.mark.parametrize("name", WRONG)
def test_snapshots(tmp_path: Path, name: str) -> None:
    """Of the earlier format, which has no checksum that would be in the way."""
    from ntkscope.training.snapshots import EARLIER

    path = tmp_path / "s.safetensors"
    for value in WRONG[name]:
        header = {**HEADER, "format": EARLIER, name: value}
        path.write_bytes(safetensors.torch.save({"params/w": torch.zeros(2)}, metadata=header))
        refused(lambda: load_snapshot(path))
    header = {**HEADER, "format": EARLIER}
    del header[name]
    path.write_bytes(safetensors.torch.save({"params/w": torch.zeros(2)}, metadata=header))
    refused(lambda: load_snapshot(path))


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", '{"settings": []}', '{"settings": {}, "schema": "2"}', '{"settings": {}, "final_step": "x"}',
             '{"settings": {}, "final_step": -1}', '{"settings": {}, "first": 3}', '{"settings": {}, "answers": []}',
             '{"settings": {}, "schema": 2, "checksum": "x"}', "[" * 100_000, '{"settings": NaN}', '{"settings": {"a": 1e999}}']
)  # fmt: skip
def test_a_folder_of_snapshots(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    refused(lambda: SnapshotStore(tmp_path).final_step)


@pytest.mark.parametrize("kind", ["pipe", "link outside"])
def test_something_else_in_place_of_the_settings(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "settings.json"
    (tmp_path / "thesis.json").write_text('{"settings": {}}')
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(tmp_path / "thesis.json")
    refused(lambda: SnapshotStore(tmp_path / "run").final_step)


CONFIGS: dict[str, str] = {
    "empty": "",
    "a list": "[]",
    "nested": "[" * 100_000,
    "NaN": '{"hidden_size": NaN}',
    "a billion layers": '{"num_hidden_layers": 1000000000}',
    "a billion heads": '{"num_attention_heads": 1000000000}',
    "a vocabulary of 2^40": '{"vocab_size": 1099511627776}',
    "a vocabulary the weights do not have": '{"vocab_size": 16000000, "hidden_size": 4096}',
    "layers the weights do not have": '{"vocab_size": 10, "hidden_size": 16000, "intermediate_size": 16000000}',
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configuration_of_an_encoder(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(CONFIGS[name])
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save({"w": torch.zeros(2)}))
    refused(lambda: check_config(tmp_path, pretrained=True))


def test_folders_that_ask_to_run_code_are_refused(tmp_path: Path) -> None:
    """Code beside an encoder or a tokenizer is never imported."""
    pytest.importorskip("transformers")
    import ntkscope as ns
    from ntkscope.cli._factories import tokenizer_of

    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass A: pass\n")
    code = {"AutoConfig": "evil.A", "AutoModel": "evil.A", "AutoTokenizer": ["evil.A", "evil.A"]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": code}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": code}))
    for act in (
        lambda: ns.models.build("text", encoder=tmp_path),
        lambda: ns.models.build("text", encoder=tmp_path, pretrained=False),
        lambda: tokenizer_of(str(tmp_path)),
    ):
        with bounded(seconds=120, extra=4 << 30), pytest.raises((DataCorrupt, UnsafeData)):
            act()
    assert not (tmp_path / "ran").exists()
    shutil.rmtree(tmp_path)
