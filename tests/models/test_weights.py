"""Weights on disk: what fits is loaded, what does not is explained, what would run code is refused."""

from __future__ import annotations

import os
import pickle
import tarfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ntkscope.core import UsageError
from ntkscope.core.errors import DataCorrupt, DataNotFound, UnsafeData
from ntkscope.models import load_weights, mlp, read_weights, resnet20, save_weights


def net(seed: int = 0, widths: int = 4) -> torch.nn.Module:
    return mlp(3, 2, widths=widths, depth=1, seed=seed)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".th", ".ckpt"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "model._orig_mod."])
@pytest.mark.parametrize("wrapped", [True, False])
def test_pytorch_files(tmp_path: Path, suffix: str, prefix: str, wrapped: bool) -> None:
    source, path = net(1), tmp_path / f"w{suffix}"
    state = {prefix + key: value for key, value in source.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3} if wrapped else state, path)
    target = net(2)
    assert load_weights(target, path) is target
    assert same(source, target)


class Payload:
    """A pickle that makes a file when it is loaded carelessly."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle", "among tensors"])
def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path: Path, form: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "w.pt"
    payload: Any = Payload(mark)
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(payload, protocol=2))
    elif form == "among tensors":
        torch.save({**net().state_dict(), "extra": payload}, path)
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=form == "zip")
    target = net(2)
    with pytest.raises(UnsafeData, match=r"refused before anything in it ran; expected a state dict.*save_weights"):
        load_weights(target, path)
    assert not mark.exists()
    assert same(target, net(2))


def test_canary_the_payload_does_run_when_loaded_carelessly(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Payload(mark)))  # noqa: S301  the danger the test above is about
    assert mark.is_dir()


def test_names_that_differ_are_listed(tmp_path: Path) -> None:
    path, target = tmp_path / "w.safetensors", net(2)
    state = net(1).state_dict()
    state["head.weight"] = state.pop("readout.weight")
    safetensors.torch.save_file(state, path)
    with pytest.raises(
        UsageError,
        match=r"MLP: missing from the file: readout\.weight; unexpected in the file: head\.weight; expected 4.*"
        r"where you build it: ntkscope\.models\.load_weights\(model, path, strict=False\)",
    ):
        load_weights(target, path)
    assert same(target, net(2))  # nothing was loaded
    load_weights(target, path, strict=False)
    assert torch.equal(target.state_dict()["layer1.weight"], net(1).state_dict()["layer1.weight"])
    assert torch.equal(target.state_dict()["readout.weight"], net(2).state_dict()["readout.weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_shapes_that_differ_are_listed(tmp_path: Path, strict: bool) -> None:
    path, target = tmp_path / "w.safetensors", net(2)
    save_weights(net(1, widths=5), path)
    with pytest.raises(UsageError, match=r"layer1\.weight is \(5, 3\) in the file and \(4, 3\) in the model"):
        load_weights(target, path, strict=strict)
    assert same(target, net(2))


def test_batch_norm_counters_may_be_absent(tmp_path: Path) -> None:
    path, source = tmp_path / "w.safetensors", resnet20(seed=1)
    state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
    safetensors.torch.save_file(state, path)
    target = load_weights(resnet20(seed=2), path)
    assert torch.equal(target.linear.weight, source.linear.weight)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="no weights at"):
        read_weights(tmp_path / "none.pt")
    (tmp_path / "w.npy").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"ends in '\.npy'; expected \.safetensors, \.pt"):
        read_weights(tmp_path / "w.npy")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(UsageError, match="holds a list; expected a state dict"):
        read_weights(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "number.pt")
    with pytest.raises(UsageError, match="not tensors: epoch"):
        read_weights(tmp_path / "number.pt")
    with pytest.raises(UsageError, match=r"ends in \.safetensors"):
        save_weights(net(), tmp_path / "w.pt")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: {"model": model, "epoch": 3}])
def test_a_whole_pickled_model_is_said_to_be_that(tmp_path: Path, wrap: Callable[..., Any], zipped: bool) -> None:
    torch.save(wrap(torch.nn.Linear(2, 2)), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnsafeData, match=r"whole pickled model \(torch.*Linear\).*torch\.save\(model\.state_dict\(\)"):
        read_weights(tmp_path / "w.pt")


def test_an_object_beside_the_weights_and_a_program_are_said_to_be_that(tmp_path: Path) -> None:
    torch.save({"state_dict": net().state_dict(), "args": Namespace(lr=0.1)}, tmp_path / "w.pt")
    with pytest.raises(UnsafeData, match=r"more than tensors \(argparse\.Namespace\)"):
        read_weights(tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as archive:  # what torch.jit.save writes
        archive.writestr("w/constants.pkl", b"")
    with pytest.raises(UnsafeData, match="TorchScript program"):
        read_weights(tmp_path / "w.pt")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(net(1), path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_weights(net(2), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_weights(tied, tmp_path / "w.safetensors")
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["1.weight"], tied[0].weight)


def test_a_checkpoint_as_the_tutorials_write_it(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model_state_dict": net(1).state_dict()}, tmp_path / "c.pt")
    assert same(load_weights(net(2), tmp_path / "c.pt"), net(1))


def test_a_prefix_is_stripped_only_where_it_is_the_only_one(tmp_path: Path) -> None:
    source, path = net(1), tmp_path / "w.ckpt"
    held = {f"model.{key}": value for key, value in source.state_dict().items()}
    torch.save({"state_dict": held | {"loss.weight": torch.ones(2)}, "hyper_parameters": {"lr": 0.1}}, path)
    assert same(load_weights(net(2), path), source)
    averaged = {f"average.{key}": value for key, value in net(3).state_dict().items()}
    torch.save({"state_dict": held | averaged}, path)
    with pytest.raises(UsageError, match=r"unexpected in the file: model\."):
        load_weights(net(2), path)
    torch.save({"state_dict": dict(list(held.items())[:-1])}, path)
    with pytest.raises(UsageError, match="missing from the file"):
        load_weights(net(2), path)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_no_flipped_byte_gives_other_weights(tmp_path: Path, suffix: str) -> None:
    """PyTorch's archives have checksums of their members, and files of `save_weights` one of all tensors."""
    source, path = net(1), tmp_path / f"w{suffix}"
    save_weights(source, path) if suffix == ".safetensors" else torch.save(source.state_dict(), path)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert same(load_weights(net(2), path), source), f"byte {place}"
        except (DataCorrupt, UnsafeData, UsageError):
            refused += 1
    assert refused > len(range(0, len(whole), 7)) / 10


LOST = {
    "complex": lambda value: torch.complex(value, value),
    "beyond float32": lambda value: value.double() * 1e300,
    "below float32": lambda value: value.double() * 1e-300,
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("strict", [True, False])
def test_weights_that_the_model_s_type_cannot_hold(tmp_path: Path, name: str, strict: bool) -> None:
    target = net(2)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    key = next(iter(before))
    torch.save({**before, key: LOST[name](before[key] + 1)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=f"lost in the model's type: {key}"):
        load_weights(target, tmp_path / "w.pt", strict=strict)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_rounding_is_no_loss(tmp_path: Path) -> None:
    source = net(1)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        torch.save({key: value.to(dtype) for key, value in source.state_dict().items()}, tmp_path / "w.pt")
        load_weights(net(2), tmp_path / "w.pt")
    state = {key: value.double() for key, value in source.state_dict().items()}
    next(iter(state.values())).view(-1)[0] = 1e-60  # one weight that decayed is no loss either
    torch.save(state, tmp_path / "w.pt")
    load_weights(net(2), tmp_path / "w.pt")


def test_a_model_without_memory_and_a_tar_archive_are_said_to_be_that(tmp_path: Path) -> None:
    save_weights(net(1), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="device meta"):
        load_weights(net(1).to("meta"), tmp_path / "w.safetensors")
    (tmp_path / "part").write_bytes(b"1")
    with tarfile.open(tmp_path / "w.pt", "w") as archive:
        archive.add(tmp_path / "part", "storages")
    with pytest.raises(DataCorrupt, match="tar archive"):
        read_weights(tmp_path / "w.pt")
