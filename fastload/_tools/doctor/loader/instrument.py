"""Times the calls that read, decode and transform inside ``dataset[i]``.

The user's code is not changed. Inside the context, known functions are replaced by timed ones in
this process; they are always restored. Calls made in another way (a C library of its own, mmap) are
not seen, and their time is reported as "other".
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Module, attribute (dots: inside a class), stage. Only imported modules are touched.
WATCHED = (
    ("os", "read", "read"),
    ("os", "pread", "read"),
    ("numpy", "fromfile", "read"),
    ("torchvision.io", "read_file", "read"),
    ("PIL.Image", "open", "decode"),
    ("PIL.ImageFile", "ImageFile.load", "decode"),
    ("PIL.Image", "Image.convert", "decode"),
    ("PIL.JpegImagePlugin", "JpegImageFile.draft", "decode"),
    ("cv2", "imread", "decode"),
    ("cv2", "imdecode", "decode"),
    ("simplejpeg", "decode_jpeg", "decode"),
    ("turbojpeg", "TurboJPEG.decode", "decode"),
    ("torchvision.io", "decode_image", "decode"),
    ("torchvision.io", "decode_jpeg", "decode"),
    ("torchvision.io", "read_image", "decode"),
    ("imageio", "imread", "decode"),
    ("imageio.v3", "imread", "decode"),
    ("skimage.io", "imread", "decode"),
    ("PIL.Image", "Image.resize", "transform"),
    ("PIL.Image", "Image.crop", "transform"),
    ("PIL.Image", "Image.transpose", "transform"),
    ("PIL.Image", "Image.rotate", "transform"),
    ("PIL.Image", "Image.transform", "transform"),
    ("PIL.Image", "Image.reduce", "transform"),
    ("cv2", "resize", "transform"),
    ("cv2", "cvtColor", "transform"),
    ("cv2", "warpAffine", "transform"),
    ("cv2", "flip", "transform"),
    ("torch.nn.functional", "interpolate", "transform"),
)
CALLABLES = (
    "transform",
    "transforms",
    "target_transform",
    "joint_transform",
    "augment",
    "augmentation",
)
_READ_AND_DECODE = ("imread", "read_image")  # one call does both
_DECODE_ARRAY = ("imdecode", "decode_jpeg", "decode_image")
_MAX_REMEMBERED = 128  # paths and encoded images
_MAX_DEPTH = 4  # datasets within datasets: Subset, ConcatDataset ...


class StageClock:
    """Adds up the time per stage of the thread that called ``start``, until ``stop``.

    Calls of other threads are not counted. The time of a stage excludes the stages inside it: a
    file read inside a decode counts as reading.
    """

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._open: list[str] = []  # names of the running stages
        self._nested_s: list[float] = [0.0]  # seconds of the stages inside each of them
        self._thread: int | None = None

    def start(self) -> None:
        self._open = []
        self._nested_s = [0.0]
        self._thread = threading.get_ident()

    def stop(self) -> None:
        self._thread = None

    def is_inside(self, stage: str) -> bool:
        return any(name.startswith(stage) for name in self._open)

    @property
    def counts(self) -> bool:
        """Whether calls of the current thread are counted now."""
        return self._thread == threading.get_ident()

    def taken(self) -> dict[str, float]:
        """Returns the totals in seconds since the previous call."""
        totals, self._totals = self._totals, {}
        return totals

    def counted(self, stage: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function and counts its time as ``stage``."""
        if not self.counts:
            return function(*args, **kwargs)
        self._open.append(stage)
        self._nested_s.append(0.0)
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            self._open.pop()
            own_s = max(0.0, seconds - self._nested_s.pop())
            self._totals[stage] = self._totals.get(stage, 0.0) + own_s
            self._nested_s[-1] += seconds

    def timed(
        self,
        original: Callable[P, R],
        stage: str,
        *,
        unless_in: str = "",
        on_call: Callable[..., None] | None = None,
    ) -> Callable[P, R]:
        """Wraps a function to count its time as ``stage``.

        Inside a stage ``unless_in``, its time remains part of that stage. ``on_call`` receives the
        positional arguments.
        """

        @functools.wraps(
            original, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=()
        )
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self.counts or (unless_in and self.is_inside(unless_in)):
                return original(*args, **kwargs)
            if on_call is not None:
                on_call(*args)
            return self.counted(stage, original, *args, **kwargs)

        return call


class Instruments(ExitStack):
    """Inside this context, ``clock`` counts the calls of the thread that starts it."""

    def __init__(self, dataset: object) -> None:
        super().__init__()
        self.clock = StageClock()
        # Files opened for reading, and images passed to a decoder as bytes.
        self.images: list[str | bytes] = []
        self.whole_calls: set[str] = set()  # functions seen that read and decode in one call
        self._dataset = dataset
        self._done: set[tuple[str, str]] = set()

    def __enter__(self) -> Instruments:
        try:
            self.refresh()
            counted_open = functools.partial(self._opened, builtins.open)
            for module in (builtins, io):  # pathlib uses io.open
                self._replace(module, "open", counted_open)
            for each in nested_datasets(self._dataset):
                self._watch_callables(each)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_full(self) -> bool:
        """True if no more images are remembered, so that the last sample may be incomplete."""
        return len(self.images) >= _MAX_REMEMBERED

    def refresh(self) -> None:
        """Also watches modules that were imported meanwhile."""
        for name, attribute, stage in WATCHED:
            module = sys.modules.get(name)
            if module is not None and (name, attribute) not in self._done:
                self._done.add((name, attribute))
                self._watch(module, attribute, stage)

    def _watch(self, module: ModuleType, attribute: str, stage: str) -> None:
        owner: Any = module
        *classes, name = attribute.split(".")
        for each in classes:
            owner = getattr(owner, each, None)
        original = getattr(owner, name, None)
        if original is None:
            return
        # A resize or a conversion inside a transform is part of that transform.
        within = "transform" if stage == "transform" or name == "convert" else ""
        on_call = None
        if attribute in ("open", *_READ_AND_DECODE, *_DECODE_ARRAY):
            on_call = functools.partial(self._remember, attribute)
        timed = self.clock.timed(original, stage, unless_in=within, on_call=on_call)
        self._replace(owner, name, timed)
        # `from cv2 import imread` in the dataset's own module
        for user in self._user_modules() if not classes else ():
            for known, value in list(vars(user).items()):
                if value is original:
                    self._replace(user, known, timed)

    def _user_modules(self) -> list[ModuleType]:
        names = {
            base.__module__
            for each in nested_datasets(self._dataset)
            for base in type(each).__mro__
        }
        return [
            sys.modules[name]
            for name in names
            if name in sys.modules and name.split(".")[0] not in ("builtins", "torch", "typing")
        ]

    def _remember(self, attribute: str, *args: object) -> None:
        first = args[0] if args else None
        if attribute in _READ_AND_DECODE and isinstance(first, str | os.PathLike):
            self.whole_calls.add(attribute)
            self._remember_path(first)
        elif not self.is_full:
            if isinstance(first, io.BytesIO):
                self.images.append(first.getvalue())
            elif isinstance(first, bytes | bytearray | memoryview):
                self.images.append(bytes(first))
            elif hasattr(first, "tobytes") and attribute in _DECODE_ARRAY:
                self.images.append(first.tobytes())

    def _remember_path(self, path: object) -> None:
        if not self.is_full and isinstance(path, str | os.PathLike):
            self.images.append(os.fsdecode(path))

    def _opened(  # noqa: PLR0917 - the order of open()
        self,
        original: Callable[..., Any],
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """Opens a file whose reads are counted, if it is a plain file opened for reading."""
        is_plain = buffering == -1 and opener is None and not isinstance(file, int)
        if not self.clock.counts or mode not in ("r", "rt", "rb", "br") or not is_plain:
            return self.clock.counted(
                "read", original, file, mode, buffering, encoding, errors, newline, closefd, opener
            )
        self._remember_path(file)
        raw = self.clock.counted("read", io.FileIO, file, "r")
        reader = CountedReader(raw, self.clock)
        if "b" in mode:
            return reader
        return io.TextIOWrapper(reader, encoding or "locale", errors, newline)

    def _watch_callables(self, dataset: object) -> None:
        for name in CALLABLES:
            found = getattr(dataset, name, None)
            if not callable(found) or isinstance(found, CountedCallable):
                continue
            parts = getattr(found, "transforms", None)
            if isinstance(parts, list) and parts and all(map(callable, parts)):  # a Compose
                timed = [
                    CountedCallable(each, f"transform.{_name(each)}", self.clock) for each in parts
                ]
                self._replace(found, "transforms", timed)
            self._replace(dataset, name, CountedCallable(found, "transform", self.clock))

    def _replace(self, owner: Any, name: str, new: object) -> None:
        own = getattr(owner, "__dict__", {})
        restore: Any = functools.partial(delattr, owner, name)
        if name in own:
            restore = functools.partial(setattr, owner, name, own[name])
        try:
            setattr(owner, name, new)
        except (AttributeError, TypeError):
            return  # a frozen dataclass, a property or a C type: it is not counted
        self.callback(restore)


class CountedReader(io.BufferedReader):
    """A file as open() returns it whose reads count as "read". It outlives the context."""

    def __init__(self, raw: io.FileIO, clock: StageClock) -> None:
        super().__init__(raw)
        self._clock = clock

    def read(self, size: int | None = -1, /) -> bytes:
        return self._clock.counted("read", super().read, size)

    def read1(self, size: int = -1, /) -> bytes:
        return self._clock.counted("read", super().read1, size)

    def readinto(self, buffer: Any, /) -> int:
        return self._clock.counted("read", super().readinto, buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._clock.counted("read", super().readline, size)


class CountedCallable:
    """Times the calls of a callable and forwards its attributes."""

    def __init__(self, inner: Any, stage: str, clock: StageClock) -> None:
        self._inner = inner
        self._call = clock.timed(inner, stage)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


def nested_datasets(dataset: object, depth: int = _MAX_DEPTH) -> Iterator[object]:
    """The dataset and the datasets inside it, as in Subset and ConcatDataset."""
    yield dataset
    inner = getattr(dataset, "dataset", None)
    more = getattr(dataset, "datasets", None)
    parts = [] if inner is None else [inner]
    parts += more if isinstance(more, list | tuple) else []
    for each in parts if depth else ():
        yield from nested_datasets(each, depth - 1)


def _name(each: object) -> str:
    return getattr(each, "__name__", None) or type(each).__name__
