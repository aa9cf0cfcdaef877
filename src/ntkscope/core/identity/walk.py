"""The walk: any Python value described by class, code and contents, the same in every process.

A description is a sha256 over those of the parts. No address, hash or set order enters it. What cannot be described (open
files, generators, locks) counts by its type alone; what the network itself writes while it runs (counters, caches,
recorded activations) is state and does not count: whoever resumes compares answers besides.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import pathlib
import re
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core.identity.code import Written, code_digest, facts
from ntkscope.core.identity.libraries import (
    OWN_NAME,
    imported_files,
    is_followed,
    is_installed,
    is_standard,
    top,
    version_of,
)
from ntkscope.core.identity.pieces import (
    DEEPEST,
    attributes_of,
    content,
    is_foreign,
    name_of,
    plain,
    tag,
    tensor_bytes,
)
from ntkscope.core.registry import Registry

PLAIN = (type(None), bool, int, float, complex, str, bytes)
BY_REPR = (
    type(Ellipsis), type(NotImplemented), range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype,
    decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
    pathlib.PurePath, uuid.UUID, types.GenericAlias, types.UnionType, typing.TypeVar,
)  # fmt: skip
NATIVE = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodWrapperType, np.ufunc,
)  # fmt: skip
CODE = (types.FunctionType, type, functools.partial)
SCRIPTED = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
BOOKKEEPING = {
    "__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__",
    "__parameters__", "__qualname__", "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl", "__hash__",
    "__match_args__", "__dataclass_params__", "__dataclass_fields__", "__annotate__", "__annotations_cache__",
}  # fmt: skip
OPAQUE = {
    "lightning", "pytorch_lightning", "lightning_fabric", "_pytest", "pytest", "IPython", "tqdm", "loguru", "logging",
}  # fmt: skip
INTERNAL = {
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook", "_compiled_call_impl",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
    "call_super_init",
}  # fmt: skip
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
MANGLED = re.compile(r"___torch_mangle_\d+\.")
STATE = b"state"
NOTHING = Written()


class Walk:
    """One walk; values met twice are described once. `code` is of all functions it followed, in order."""

    def __init__(self) -> None:
        self.code = hashlib.sha256()
        self._known: dict[int, bytes] = {}
        self._open: set[int] = set()
        self._alive: list[Any] = []  # so that no address is given to a second value
        self._tensors = 0

    def digest(self, value: Any) -> bytes:
        """The description of any value."""
        if type(value) in PLAIN:
            return plain(value)
        key = id(value)
        if key in self._known:
            return self._known[key]
        if key in self._open or len(self._open) > DEEPEST:
            return tag("too deep" if key not in self._open else "a value this one is part of", type(value).__qualname__)
        self._open.add(key)
        self._alive.append(value)
        try:
            found = self._known[key] = self._describe(value)
        finally:
            self._open.discard(key)
        return found

    def register(self, name: str, value: Tensor) -> None:
        """Let a parameter or buffer count by name, place and flags from here on, its numbers being described elsewhere."""
        if id(value) not in self._known:
            self._alive.append(value)
            self._known[id(value)] = self._tensor(value, name)

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _describe(self, value: Any) -> bytes:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, enum.Enum):
            return tag("enum", self._type_name(type(value)), value.name, self.digest(value.value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, BY_REPR):
            return tag("text", type(value).__qualname__, repr(value))
        return self._callable(value) or self._container(value) or self._object(value)

    def _callable(self, value: Any) -> bytes | None:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return tag("method", self.digest(value.__func__), self.digest(value.__self__))
        if isinstance(value, functools.partial | functools.partialmethod):
            inner = (value.func, list(value.args), dict(value.keywords))
            return tag("partial", *map(self.digest, inner), self._own(value))
        if isinstance(value, staticmethod | classmethod):
            return tag(type(value).__name__, self.digest(value.__func__))
        if isinstance(value, property):
            return tag("property", *(self.digest(one) for one in (value.fget, value.fset)))
        if isinstance(value, functools.cached_property):
            return tag("cached property", self.digest(value.func))
        if isinstance(value, SCRIPTED):
            return self._scripted(value)
        if isinstance(value, NATIVE):
            bound = getattr(value, "__self__", None)
            own = b"" if bound is None or isinstance(bound, types.ModuleType) else self.digest(bound)
            owner = getattr(getattr(value, "__objclass__", None), "__qualname__", "")
            return tag("native", getattr(value, "__module__", None) or "", owner, name_of(value), own)
        if isinstance(value, functools._lru_cache_wrapper):
            return tag("cached", self.digest(value.__wrapped__))
        return None

    def _container(self, value: Any) -> bytes | None:
        if isinstance(value, Registry):  # of ntkscope: its version says what is in it
            return tag("registry", value.kind if hasattr(value, "kind") else "")
        if isinstance(value, types.ModuleType):
            return tag("module", value.__name__, version_of(value.__name__))
        if isinstance(value, re.Pattern):
            return tag("pattern", value.pattern, value.flags)
        if isinstance(value, bytearray | memoryview):
            return tag("bytes", bytes(value))
        kind = self._type_name(type(value))
        if isinstance(value, dict | types.MappingProxyType):
            default = self.digest(getattr(value, "default_factory", None))
            pairs = (part for key, item in value.items() for part in (self.digest(key), self.digest(item)))
            return tag("mapping", kind, default, *pairs, self._own(value))
        if isinstance(value, list | tuple | collections.deque):
            if all(type(item) in PLAIN for item in value):  # at once, for there may be millions
                return tag("row", kind, repr(tuple(value)), self._own(value))
            return tag("sequence", kind, *map(self.digest, value), self._own(value))
        if isinstance(value, set | frozenset):
            return tag("set", kind, *sorted(map(self.digest, value)))
        if isinstance(value, PLAIN):  # a subclass of a number or a text
            base = next(base for base in PLAIN if isinstance(value, base))
            text = float.hex(value) if isinstance(value, float) else base.__repr__(value)  # type: ignore[call-arg]
            return tag("number", kind, text, self._own(value))
        if isinstance(value, types.SimpleNamespace | argparse.Namespace):
            return tag("namespace", kind, self._own(value))
        return None

    def _object(self, value: Any) -> bytes:
        """An object by its class and its own attributes; those of Python itself and of tools by their class alone."""
        kind = type(value)
        module = kind.__module__
        if is_standard(module) or top(module) in OPAQUE or isinstance(value, torch.Generator):
            return tag("something", module, kind.__qualname__)
        return tag("object", self.digest(kind), self._own(value, self._written(kind)))

    def _own(self, value: Any, written: Written = NOTHING) -> bytes:
        """The attributes of one object, by name."""
        return self._attributes(attributes_of(value), written)

    def _attributes(self, members: Mapping[str, Any], written: Written = NOTHING) -> bytes:
        parts = []
        for name in sorted(members, key=str):
            item = members[name]
            if not written.holds(name, item):
                parts += [str(name).encode(), self.digest(item)]
        return tag("attributes", *parts) if parts else b""

    # -- code -------------------------------------------------------------------------------------------------------

    def _function(self, value: types.FunctionType) -> bytes:
        """A function by its code and all it refers to; a library's by its name and version, and by what it was made with."""
        home = str(value.__globals__.get("__name__") or value.__module__)  # where its code is, whatever it claims
        if not is_followed(home):
            ours = top(home) == OWN_NAME
            plain_one = inspect.unwrap(value) if ours else value  # without the type checks of tests
            own = code_digest(plain_one.__code__) if ours else b""
            cells = [self.digest(content(cell)) for cell in plain_one.__closure__ or ()]
            return tag("library", self._library("function", home, value.__qualname__), own, *cells)
        code = value.__code__
        documented = value.__doc__ is not None and code.co_consts[:1] == (value.__doc__,)
        own = code_digest(code, documented)
        self.code.update(f"{home} {value.__qualname__}\0".encode() + own)
        known = facts(code)
        closure = [
            self._variable(name, content(cell), known.variables)
            for name, cell in zip(code.co_freevars, value.__closure__ or ())
        ]
        named = []
        for chain in known.chains:
            if chain[0] in value.__globals__:
                item = value.__globals__[chain[0]]
                if isinstance(item, types.ModuleType):
                    named.append(self._through(item, chain))
                elif is_installed(home) and not isinstance(item, (*PLAIN, *CODE, list, tuple, dict, set)):
                    named.append(tag("variable of a package", chain[0], type(item).__qualname__))
                else:
                    named.append(self._variable(chain[0], item, known.variables))
        package = value.__globals__.get("__package__") or home.rpartition(".")[0]
        for imported in known.imports:  # inside the function: perhaps not loaded yet, so by the bytes of its file
            for path in imported_files(*imported, package):
                named.append(tag("file", path.name, path.read_bytes()))
                self.code.update(named[-1])
        parts = (value.__defaults__, value.__kwdefaults__)
        return tag(
            "function", value.__module__, value.__qualname__, own, *map(self.digest, parts), *closure, b"|", *named,
            self._own(value),
        )  # fmt: skip

    def _library(self, kind: str, module: str, name: str) -> bytes:
        """A library's function or class, for which name and version stand."""
        found = tag(kind, module, name, version_of(module))
        self.code.update(found)
        return found

    def _variable(self, name: str, value: Any, written: Written) -> bytes:
        """A variable a function sees from outside; one it writes itself is state."""
        return tag("variable", name, STATE if written.holds(name, value) else self.digest(value))

    def _through(self, module: types.ModuleType, chain: tuple[str, ...]) -> bytes:
        """What `module.a.b` names, without asking for what the module has not loaded."""
        item: Any = module
        for name in chain[1:]:
            if not isinstance(item, types.ModuleType):
                break
            if name not in vars(item):
                return tag("name", item.__name__, name)
            item = vars(item)[name]
        return tag("name", *chain, self.digest(item))

    def _class(self, kind: type) -> bytes:
        """A class by its name, its code, its plain attributes and its bases; a library's by its name and version."""
        name = (kind.__module__, kind.__qualname__)
        members = {key: item for key, item in vars(kind).items() if key not in BOOKKEEPING}
        if not is_followed(kind.__module__):
            foreign = {key: item for key, item in members.items() if is_foreign(item, kind)}
            return tag("library", self._library("class", *name), self._attributes(foreign))
        plain = {key: item for key, item in members.items() if not isinstance(item, types.MemberDescriptorType)}
        bases = [self.digest(base) for base in kind.__bases__ if base is not object]
        return tag(
            "class", *name, self._type_name(type(kind)), *bases, b"|", self._attributes(plain, self._written(kind))
        )

    def _written(self, kind: type) -> Written:
        """The attributes that a class's own code writes when it is called."""
        written = NOTHING
        waiting, seen = ["forward", "__call__"], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for base in kind.__mro__:
                member = vars(base).get(name)
                member = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                if isinstance(member, types.FunctionType) and is_followed(base.__module__):
                    known = facts(member.__code__)
                    written |= known.fields
                    waiting += known.attributes
        return written

    # -- PyTorch and NumPy ------------------------------------------------------------------------------------------

    def _module(self, module: nn.Module) -> bytes:
        if isinstance(module, SCRIPTED):
            return self._scripted(module)
        original = vars(module).get("_modules", {}).get("_orig_mod")
        if isinstance(original, nn.Module) and type(module).__name__ == "OptimizedModule":  # torch.compile
            return self.digest(original)
        own = vars(module)
        hooks = []
        for name in HOOKS:
            flags = [own.get(flag) or {} for flag in FLAGS]
            for key, hook in (own.get(name) or {}).items():
                hooks += [name.encode(), self.digest(hook), repr([key in flag for flag in flags]).encode()]
        written = self._written(type(module))
        for name in HOOKS:
            for hook in (own.get(name) or {}).values():
                code = getattr(getattr(hook, "__func__", hook), "__code__", None)
                if code is not None:
                    written |= facts(code).fields
        parts: list[bytes] = []
        for kind in ("_parameters", "_buffers", "_modules"):
            for name, item in (own.get(kind) or {}).items():
                parts += [kind.encode(), str(name).encode(), self.digest(item)]
        plain = {
            key: item for key, item in own.items() if key not in INTERNAL and key not in HOOKS and key not in FLAGS
        }
        generated = module.code if isinstance(module, torch.fx.GraphModule) else ""
        for skipped in ("_graph", "_code", "_tracer_cls") if generated else ():
            plain.pop(skipped, None)
        attributes = self._attributes(plain, written)
        return tag("network", self.digest(type(module)), generated, *parts, b"|", attributes, *hooks)

    def _scripted(self, value: Any) -> bytes:
        """TorchScript, by the code it prints."""
        children = list(value.named_children()) if isinstance(value, nn.Module) else []
        numbers = list(value.named_parameters()) + list(value.named_buffers()) if isinstance(value, nn.Module) else []
        try:
            text, constants = value.code_with_constants
        except (RuntimeError, AttributeError):  # a module without a forward of its own
            text, constants = "", None
        known = self.digest(dict(getattr(constants, "const_mapping", {})))
        text = MANGLED.sub("", str(text))  # numbers that only count what a process has compiled
        members = [part for name, item in children + numbers for part in (name.encode(), self.digest(item))]
        training = bool(getattr(value, "training", False))
        return tag("script", getattr(value, "original_name", ""), text, known, repr(training), *members)

    def _tensor(self, value: Tensor, name: str | None = None) -> bytes:
        """Kind, shape and flags of a tensor, a number of its own, and its numbers unless they are described elsewhere."""
        self._tensors += 1  # a tensor in two places is one; two equal ones are two
        hooks = [
            self.digest(hook)
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
            for hook in (getattr(value, kind, None) or {}).values()
        ]
        kind = tag(type(value).__qualname__, self._tensors, value.dtype, bool(value.requires_grad))
        extra = self._own(value)
        if nn.parameter.is_lazy(value):
            return tag("tensor", kind, "not made yet", *hooks, extra)
        own = b"" if name is not None else tensor_bytes(value)
        return tag("tensor", kind, name or "", repr(tuple(value.shape)), own, *hooks, extra)

    def _array(self, value: np.ndarray | np.generic) -> bytes:
        array = np.asarray(value)
        shape = f"{array.dtype.str} {array.shape}"
        if array.dtype.hasobject:
            return tag("array", type(value).__qualname__, shape, *map(self.digest, array.ravel().tolist()))
        return tag("array", type(value).__qualname__, shape, np.ascontiguousarray(array).tobytes())

    def _type_name(self, kind: type) -> bytes:
        return self.digest(kind) if is_followed(kind.__module__) else f"{kind.__module__}.{kind.__qualname__}".encode()
