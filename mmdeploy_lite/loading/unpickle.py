"""Unpickling checkpoints without running anything that they bring along.

``torch.load(weights_only=True)`` refuses the checkpoints that mmengine writes (HistoryBuffer, NumPy scalars), and
before torch 2.6 it could be tricked into running code. So this is an unpickler of its own, the same for every torch:
a pickle can only name what is in the tables below, and can only call what is callable there. Classes of the OpenMMLab
packages become :class:`Inert`, which swallows whatever state it is given; the weights do not need them.

``torch.load`` does the rest. It takes the two names of a ``pickle_module`` that it uses, ``Unpickler`` and ``load``,
which this module has, both for the zip format and for the one before it.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

INERT_PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'mmcls', 'mmyolo', 'addict')
"""Packages whose objects mmengine's runner puts beside the weights."""


class UnsafeGlobalError(pickle.UnpicklingError):
    """The pickle names, or calls, something that is not allowed.

    Attributes:
        name: what it names, as ``module.name``.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f'{name} is not allowed')
        self.name = name


class Inert:
    """Stands for an object that is not restored: takes any arguments, items and state, and keeps none."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def swallow(self, *args: Any, **kwargs: Any) -> None:
        """Take what a list, a set or a dict would."""

    append = extend = add = update = __setitem__ = swallow


def _attribute(owner: Any, name: str, *default: Any) -> Inert:
    """For ``getattr``, by which old pickle protocols name the methods that HistoryBuffer keeps."""
    if owner is not Inert and not isinstance(owner, Inert):
        raise UnsafeGlobalError('builtins.getattr')
    return Inert()


def _encode(text: str, encoding: str = 'latin1') -> bytes:
    """For ``_codecs.encode``, by which protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ('latin1', 'latin-1'):
        raise UnsafeGlobalError('_codecs.encode')
    return text.encode('latin1')


def _plain_dict(*args: Any) -> dict:
    """For dicts of a class of their own, and for defaultdict, whose first argument is a function."""
    return dict(args[-1]) if args and isinstance(args[-1], Mapping) else {}


def _plain_list(items: Any = (), *limit: Any) -> list:
    """For deque."""
    return list(items)


# NumPy. A dtype can hold objects, and a forged one can pass bytes off as objects, so only plain kinds are made here,
# from the type code alone, and the state of arrays and dtypes is checked instead of handed on.


def _dtype(code: Any, *align_and_copy: Any) -> np.dtype:
    if not isinstance(code, str):
        raise UnsafeGlobalError(f'numpy.dtype({code!r})')
    made = np.dtype(code, False, True)
    if made.kind not in 'biufcSU' or made.fields is not None or made.subdtype is not None:
        raise UnsafeGlobalError(f'numpy.dtype({code!r})')
    return made


def _set_dtype_state(dtype: np.dtype, state: tuple) -> None:
    _, byte_order, subtype, names, fields = state[:5]
    if byte_order not in ('<', '>', '|', '=') or (subtype, names, fields) != (None, None, None):
        raise UnsafeGlobalError(f'numpy.dtype with state {state!r}')
    sized = dtype.kind in 'SU'
    layout = (dtype.itemsize, dtype.alignment, dtype.flags) if sized else (-1, -1, 0)
    dtype.__setstate__((3, byte_order, None, None, None, *layout))


def _empty_array(*kind_shape_and_code: Any) -> np.ndarray:
    return np.ndarray((0,), 'b')


def _set_array_state(array: np.ndarray, state: tuple) -> None:
    *_, shape, dtype, fortran_order, data = state
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
        raise UnsafeGlobalError('numpy array of objects')
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise pickle.UnpicklingError(f'a NumPy array of shape {shape} and {dtype} has {len(data)} bytes')
    array.__setstate__((1, shape, dtype, bool(fortran_order), data))


def _array_from_buffer(data: Any, dtype: Any, shape: tuple, order: str) -> np.ndarray:
    if not isinstance(dtype, np.dtype) or not isinstance(data, (bytes, bytearray)):
        raise UnsafeGlobalError('numpy array of objects')
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _scalar(dtype: Any, data: Any) -> np.generic:
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
        raise UnsafeGlobalError('numpy scalar of an object')
    return np.frombuffer(data, dtype)[0]


# torch. Hooks, metadata and attributes of a tensor are dropped.


def _tensor(storage: Any, offset: int, size: tuple, stride: tuple, *rest: Any) -> torch.Tensor:
    return torch._utils._rebuild_tensor(storage, offset, size, stride)


def _tensor_of_dtype(
    storage: Any, offset: int, size: tuple, stride: tuple, grad: Any, hooks: Any, dtype: Any, *rest: Any
):
    return torch.empty(0, dtype=dtype).set_(storage._untyped_storage, offset, size, stride)


def _parameter(data: torch.Tensor, *rest: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)


def _tensor_with_attributes(rebuild: Any, kind: Any, args: tuple, attributes: Any) -> torch.Tensor:
    return call(rebuild, args)


_CALLABLES: dict[tuple[str, str], Callable] = {
    ('builtins', 'getattr'): _attribute,
    ('builtins', 'set'): set,
    ('builtins', 'frozenset'): frozenset,
    ('builtins', 'list'): list,
    ('builtins', 'tuple'): tuple,
    ('builtins', 'dict'): dict,
    ('builtins', 'complex'): complex,
    ('_codecs', 'encode'): _encode,
    ('collections', 'OrderedDict'): OrderedDict,
    ('collections', 'Counter'): Counter,
    ('collections', 'defaultdict'): _plain_dict,
    ('collections', 'deque'): _plain_list,
    ('mmengine.config.config', 'ConfigDict'): _plain_dict,
    ('mmcv.utils.config', 'ConfigDict'): _plain_dict,
    ('addict.addict', 'Dict'): _plain_dict,
    ('numpy', 'dtype'): _dtype,
    ('torch', 'Size'): torch.Size,
    ('torch', 'device'): torch.device,
    ('torch._utils', '_rebuild_tensor'): _tensor,
    ('torch._utils', '_rebuild_tensor_v2'): _tensor,
    ('torch._utils', '_rebuild_tensor_v3'): _tensor_of_dtype,
    ('torch._utils', '_rebuild_parameter'): _parameter,
    ('torch._utils', '_rebuild_parameter_with_state'): _parameter,
    ('torch._tensor', '_rebuild_from_type_v2'): _tensor_with_attributes,
}
for _core in ('numpy.core', 'numpy._core'):  # before NumPy 2, and since
    _CALLABLES[f'{_core}.multiarray', '_reconstruct'] = _empty_array
    _CALLABLES[f'{_core}.multiarray', 'scalar'] = _scalar
    _CALLABLES[f'{_core}.numeric', '_frombuffer'] = _array_from_buffer

_CONSTANTS: dict[tuple[str, str], Any] = {
    **{('builtins', kind.__name__): kind for kind in (bool, int, float, str, bytes)},
    ('numpy', 'ndarray'): np.ndarray,
    ('torch', 'Tensor'): torch.Tensor,
    ('torch.nn.parameter', 'Parameter'): torch.nn.Parameter,
    ('torch.storage', 'UntypedStorage'): torch.UntypedStorage,
    **{('torch', name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
}
_ALLOWED_CALLS = {id(function) for function in _CALLABLES.values()}
_OLD_NAMES = {'__builtin__': 'builtins'}


def call(function: Any, args: Any) -> Any:
    """Call ``function`` when the tables hold it.

    Raises:
        UnsafeGlobalError: they do not.
    """
    if function is Inert:
        return Inert()
    if id(function) not in _ALLOWED_CALLS:
        raise UnsafeGlobalError(f'a call of {function!r}')
    return function(*args)


class Unpickler(pickle._Unpickler):
    """Unpickles what the tables hold; anything else is an :class:`UnsafeGlobalError`.

    The unpickler written in Python, not the one in C: only there can the opcodes that call functions and set state be
    replaced.
    """

    dispatch = dict(pickle._Unpickler.dispatch)  # its own copy, filled in below

    def find_class(self, module: str, name: str) -> Any:
        key = (_OLD_NAMES.get(module, module), name)
        for table in (_CALLABLES, _CONSTANTS):
            if key in table:
                return table[key]
        if key[0].partition('.')[0] in INERT_PACKAGES:
            return Inert
        raise UnsafeGlobalError('.'.join(key))

    def get_extension(self, code: int) -> None:
        raise UnsafeGlobalError(f'copyreg extension {code}')

    def _instantiate(self, kind: Any, args: Any) -> None:  # OBJ and INST
        self.append(call(kind, tuple(args)))

    def load_reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = call(self.stack[-1], args)

    def load_newobj(self) -> None:
        self.load_reduce()

    def load_newobj_ex(self) -> None:
        kwargs = self.stack.pop()
        if kwargs and self.stack[-2] is not Inert:
            raise UnsafeGlobalError(f'a call of {self.stack[-2]!r} with {kwargs!r}')
        self.load_reduce()

    def load_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, np.dtype):
            _set_dtype_state(target, state)
        elif type(target) is np.ndarray:
            _set_array_state(target, state)
        elif type(target) is OrderedDict:
            if isinstance(state, dict) and '_metadata' in state:
                target._metadata = state['_metadata']  # the versions of a state_dict's layers
        elif not isinstance(target, (Inert, dict, torch.Tensor)):  # the state of these is dropped
            raise UnsafeGlobalError(f'the state of {type(target).__name__}')

    def load_persid(self) -> None:
        raise UnsafeGlobalError('a persistent id written as text')

    def load_binpersid(self) -> None:
        identity = self.stack.pop()
        if not isinstance(identity, tuple) or not identity or identity[0] not in ('storage', b'storage'):
            raise UnsafeGlobalError(f'the persistent id {identity!r}')
        self.append(self.persistent_load(identity))


Unpickler.dispatch.update(
    {
        pickle.REDUCE[0]: Unpickler.load_reduce,
        pickle.NEWOBJ[0]: Unpickler.load_newobj,
        pickle.NEWOBJ_EX[0]: Unpickler.load_newobj_ex,
        pickle.BUILD[0]: Unpickler.load_build,
        pickle.PERSID[0]: Unpickler.load_persid,
        pickle.BINPERSID[0]: Unpickler.load_binpersid,
    }
)


def load(file: BinaryIO, **options: Any) -> Any:
    """Unpickle one object from ``file``; ``torch.load`` reads the parts of its older format so."""
    return Unpickler(file, **options).load()
