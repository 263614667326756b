"""Pickles read without an unpickler: plain values are taken from them, nothing is ever looked up or called.

A pickle is a list of instructions. Of these, only such as describe plain values are followed. What a name, a call and a
state mean is for the reader of a kind of files to say: CIFAR's batches here, torch's files in ``models.torch_files``. A
``pickle.Unpickler`` that allows numpy's names only would not do: numpy takes the sizes and flags of a crafted array as
they come.
"""

import math
import pickletools
from collections.abc import Sequence
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np

MOST_INSTRUCTIONS = 2_000_000  # a batch of CIFAR-10 has some 30,000, all of CIFAR-100 some 300,000


class Instructions:
    """Follows pickles; texts that Python 2 wrote, which are bytes, become texts of as many characters."""

    def __init__(self) -> None:
        self._left = MOST_INSTRUCTIONS

    def follow(self, file: BinaryIO) -> Any:
        """The value that a pickle describes; the file is behind it then."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        for instruction, argument, _ in pickletools.genops(file):
            self._left -= 1
            if self._left < 0:
                raise ValueError("it has too many instructions")
            self._do(instruction.name, argument)
        return self.stack.pop()

    # -- what a kind of files says -------------------------------------------------------------------------------

    def named(self, name: str) -> Any:
        """What stands for something that has a name in Python."""
        raise ValueError(f"it has the name {name:.80}")

    def called(self, function: Any, arguments: Any) -> Any:
        """What a call would give."""
        raise ValueError("it calls a function")

    def built(self, target: Any, state: Any) -> Any:
        """What becomes of a thing that is given a state."""
        raise ValueError("it has a state")

    def stored(self, about: Any) -> Any:
        """What stands for something that is kept outside of the pickle."""
        raise ValueError("it speaks of something outside of it")

    # ------------------------------------------------------------------------------------------------------------

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(stack))
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING" | "BINBYTES" | "SHORT_BINBYTES":
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop(int(name[-1]))))
            case "APPEND":
                (item,) = self._pop(1)
                stack[-1].append(item)
            case "APPENDS":
                items = self._since_mark()
                stack[-1].extend(items)
            case "SETITEM":
                _set_items(self._pop(2), stack[-1])
            case "SETITEMS":
                _set_items(self._since_mark(), stack[-1])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "GLOBAL":
                stack.append(self.named(argument.replace(" ", ".")))
            case "BINPERSID":
                stack.append(self.stored(*self._pop(1)))
            case "REDUCE":
                stack.append(self.called(*self._pop(2)))
            case "BUILD":
                stack.append(self.built(*self._pop(2)))
            case _:
                raise ValueError(f"it has the instruction {name}")

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise ValueError("its instructions do not fit each other")
        popped = self.stack[-count:]
        del self.stack[-count:]
        return popped

    def _since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        popped = self.stack[mark:]
        del self.stack[mark:]
        return popped


def _set_items(items: Sequence[Any], target: Any) -> None:
    """Takes only plain keys: to hash a tuple takes as long as it is deep, and it may be as deep as no stack is."""
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str | int) for key in items[::2]):
        raise ValueError("it has a dict with keys that are neither words nor numbers")
    target.update(zip(items[::2], items[1::2], strict=True))


# -- arrays of bytes -------------------------------------------------------------------------------------------------

ARRAY, EMPTY, BYTES, ENCODE = "numpy.ndarray", "numpy.core.multiarray._reconstruct", "numpy.dtype", "_codecs.encode"
NAMES = {name: name for name in (ARRAY, EMPTY, BYTES, ENCODE)} | {"numpy._core.multiarray._reconstruct": EMPTY}
BYTE_TYPES = ("u1", "|u1", "uint8")
MOST_DIMENSIONS = 4


class _Part:
    """A name of numpy's, or what is to become an array or its type; told apart from texts of the same characters."""

    def __init__(self, what: str) -> None:
        self.what = what


class ByteArrays(Instructions):
    """Follows pickles of plain values and numpy's arrays of bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.room = size  # for the bytes of arrays: a text that is used again and again would fill the memory

    def named(self, name: str) -> _Part:
        if name not in NAMES:
            raise ValueError(f"it calls {name:.80}")
        return _Part(NAMES[name])

    def called(self, function: Any, arguments: Any) -> Any:
        what = _what(function)
        if isinstance(arguments, tuple) and arguments:
            if what == EMPTY and _what(arguments[0]) == ARRAY:
                return _Part("an array")
            if what == BYTES and isinstance(arguments[0], str) and arguments[0] in BYTE_TYPES:
                return _Part("bytes")
            if what == ENCODE and isinstance(arguments[0], str) and arguments[1:] == ("latin1",):
                return arguments[0]  # so Python 3 writes a text of Python 2's
        raise ValueError("it calls a function with something else than CIFAR has")

    def built(self, target: Any, state: Any) -> Any:
        """A type is told the order of its bytes, of which it has one, and an array what is in it."""
        if _what(target) == "bytes":
            return target
        if _what(target) != "an array" or not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("it has a state of something else than an array")
        _, shape, kind, is_by_column, content = state
        if _what(kind) != "bytes" or is_by_column or not isinstance(content, str | bytes):
            raise ValueError("it has an array of something else than bytes, row by row")
        is_shape = isinstance(shape, tuple) and len(shape) <= MOST_DIMENSIONS and all(type(s) is int for s in shape)
        if not is_shape or min(shape, default=0) < 0 or math.prod(shape) != len(content):
            raise ValueError(f"it has an array of another size than its {len(content)} bytes")
        self.room -= len(content)
        if self.room < 0:
            raise ValueError("it has arrays larger than itself")
        stored = content.encode("latin-1") if isinstance(content, str) else content
        return np.frombuffer(stored, np.uint8).reshape(shape)


def _what(value: Any) -> str:
    return value.what if isinstance(value, _Part) else ""


def read_byte_arrays(content: bytes) -> dict[str | int, Any]:
    """The dict in a pickle, of lists, texts, numbers, arrays uint8. A ``ValueError`` says what else is there."""
    try:
        value = ByteArrays(len(content)).follow(BytesIO(content))
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"{type(error).__name__}: {error!s:.80}") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no dictionary")
    return value
