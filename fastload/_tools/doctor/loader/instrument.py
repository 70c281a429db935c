"""Watches the calls that read, decode and transform inside ``dataset[i]``, without a change to the user's code.

Functions are exchanged for timed ones in this process, for as long as the context lasts, and always put back. What is called by
another way (a C library on its own, mmap) is not seen; the difference is reported as "other".
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
from types import ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class StageClock:
    """Counts the thread that started it, between ``start`` and ``stop``; everybody else's calls pass unseen.

    A stage's time is its own: a file read inside a decode is reading, not decoding.
    """

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.inside: list[str] = []  # names of the stages that are open
        self._began: list[float] = []
        self._inner: list[float] = []  # seconds of the stages within each open one
        self._thread: int | None = None

    def start(self) -> None:
        """From now on calls of this thread count."""
        self.inside = []
        self._began = []
        self._inner = [0.0]
        self._thread = threading.get_ident()

    def stop(self) -> None:
        """They no longer do."""
        self._thread = None

    @property
    def counts(self) -> bool:
        """Whether a call here and now is counted."""
        return self._thread == threading.get_ident()

    def enter(self, name: str) -> None:
        """A stage begins."""
        self.inside.append(name)
        self._inner.append(0.0)
        self._began.append(time.perf_counter())

    def leave(self) -> None:
        """The newest stage ends."""
        seconds = time.perf_counter() - self._began.pop()
        name = self.inside.pop()
        inner = self._inner.pop()
        self.totals[name] = self.totals.get(name, 0.0) + max(0.0, seconds - inner)
        self._inner[-1] += seconds

    def taken(self) -> dict[str, float]:
        """The totals since the last call."""
        totals, self.totals = self.totals, {}
        return totals

    def counted(self, stage: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, counted as ``stage``."""
        if not self.counts:
            return function(*args, **kwargs)
        self.enter(stage)
        try:
            return function(*args, **kwargs)
        finally:
            self.leave()

    def timed(
        self,
        original: Callable[P, R],
        stage: str,
        *,
        unless_in: str = "",
        see: Callable[..., None] | None = None,
    ) -> Callable[P, R]:
        """The same function, counted as ``stage`` (as its surroundings, inside ``unless_in``); ``see`` is shown its arguments."""

        @functools.wraps(
            original, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=()
        )
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self.counts or (
                unless_in and any(name.startswith(unless_in) for name in self.inside)
            ):
                return original(*args, **kwargs)
            if see is not None:
                see(*args)
            return self.counted(stage, original, *args, **kwargs)

        return call


# module, attribute (dots: inside a class), stage. Only modules that are imported already are touched.
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
_SEEN = 64  # paths and encoded images that are remembered
_DEPTH = 4  # datasets within datasets: Subset, ConcatDataset ...


class Instruments:
    """A context: inside it the calls of this thread are counted by ``clock``; ``refresh`` also finds modules imported since."""

    def __init__(self, dataset: object) -> None:
        self.clock = StageClock()
        self.paths: list[str] = []  # files opened for reading
        self.encoded: list[bytes] = []  # images handed to a decoder as bytes
        self.whole_calls: set[str] = set()  # functions seen that read and decode in one go
        self._dataset = dataset
        self._undo: list[tuple[Any, str, Any]] = []
        self._done: set[tuple[str, str]] = set()

    def __enter__(self) -> Instruments:
        try:
            self.refresh()
            self._watch_open()
            for each in nested_datasets(self._dataset):
                self._watch_callables(each)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def refresh(self) -> None:
        """Also watches what was imported meanwhile."""
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
        # A resize or a conversion inside a transform is part of that transform, under its name.
        within = "transform" if stage == "transform" or name == "convert" else ""
        timed = self.clock.timed(original, stage, unless_in=within, see=self._seer(attribute))
        self._exchange(owner, name, timed)
        if not classes:  # `from cv2 import imread` in the dataset's own module
            for user in self._user_modules():
                for known, value in list(vars(user).items()):
                    if value is original:
                        self._exchange(user, known, timed)

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

    def _seer(self, attribute: str) -> Any:
        def see(*args: object) -> None:
            first = args[0] if args else None
            if attribute in ("imread", "read_image") and isinstance(first, str | os.PathLike):
                self.whole_calls.add(attribute)
                self._saw_path(first)
            elif len(self.encoded) < _SEEN:
                if isinstance(first, io.BytesIO):
                    self.encoded.append(first.getvalue())
                elif isinstance(first, bytes | bytearray | memoryview):
                    self.encoded.append(bytes(first))
                elif hasattr(first, "tobytes") and attribute in (
                    "imdecode",
                    "decode_jpeg",
                    "decode_image",
                ):
                    self.encoded.append(first.tobytes())

        return (
            see
            if attribute
            in ("open", "imread", "read_image", "imdecode", "decode_jpeg", "decode_image")
            else None
        )

    def _saw_path(self, path: object) -> None:
        if len(self.paths) < _SEEN and isinstance(path, str | os.PathLike):
            self.paths.append(os.fsdecode(path))

    def _watch_open(self) -> None:
        """builtins.open and io.open (pathlib's) give files whose reads are counted, too."""
        original = builtins.open
        clock = self.clock

        def opened(  # noqa: PLR0917 - open's own order
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not clock.counts:
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            clock.enter("read")
            try:
                if (
                    mode not in ("r", "rt", "rb", "br")
                    or buffering != -1
                    or opener is not None
                    or isinstance(file, int)
                ):
                    return original(
                        file, mode, buffering, encoding, errors, newline, closefd, opener
                    )
                self._saw_path(file)
                reader = CountedReader(io.FileIO(file, "r"), clock)
                return (
                    reader
                    if "b" in mode
                    else io.TextIOWrapper(reader, encoding or "locale", errors, newline)
                )
            finally:
                clock.leave()

        for module in (builtins, io):
            self._exchange(module, "open", opened)

    def _watch_callables(self, dataset: object) -> None:
        for name in CALLABLES:
            found = getattr(dataset, name, None)
            if not callable(found) or isinstance(found, CountedCallable):
                continue
            parts = getattr(found, "transforms", None)
            if (
                isinstance(parts, list) and parts and all(map(callable, parts))
            ):  # Compose: each by its own name
                self._exchange(
                    found,
                    "transforms",
                    [
                        CountedCallable(each, f"transform.{_name(each)}", self.clock)
                        for each in parts
                    ],
                )
            self._exchange(dataset, name, CountedCallable(found, "transform", self.clock))

    def _exchange(self, owner: Any, name: str, new: object) -> None:
        old = vars(owner)[name] if name in getattr(owner, "__dict__", {}) else _NOT_ITS_OWN
        try:
            setattr(owner, name, new)
        except (
            AttributeError,
            TypeError,
        ):  # a frozen dataclass, a property, a C type: it stays as it is, uncounted
            return
        self._undo.append((owner, name, old))

    def _restore(self) -> None:
        self.clock.stop()
        while self._undo:
            owner, name, old = self._undo.pop()
            if old is _NOT_ITS_OWN:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


class CountedReader(io.BufferedReader):
    """A file opened for reading as open() gives it; what is read from it counts as "read". It outlives the context unharmed."""

    def __init__(self, raw: io.FileIO, clock: StageClock) -> None:
        super().__init__(raw)
        self._clock = clock

    def read(self, size: int | None = -1, /) -> bytes:
        """Counted."""
        return self._clock.counted("read", super().read, size)

    def read1(self, size: int = -1, /) -> bytes:
        """Counted."""
        return self._clock.counted("read", super().read1, size)

    def readinto(self, buffer: Any, /) -> int:
        """Counted."""
        return self._clock.counted("read", super().readinto, buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Counted."""
        return self._clock.counted("read", super().readline, size)


class CountedCallable:
    """Wraps a callable and times its calls; attributes are those of the callable."""

    def __init__(self, inner: Any, stage: str, clock: StageClock) -> None:
        self._inner = inner
        self._call = clock.timed(inner, stage)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Counted."""
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


def nested_datasets(dataset: object, depth: int = _DEPTH) -> Iterator[object]:
    """The dataset and those inside it, as Subset and ConcatDataset hold them."""
    yield dataset
    if depth:
        inner = getattr(dataset, "dataset", None)
        more = getattr(dataset, "datasets", None)
        for each in [inner] * (inner is not None) + (
            list(more) if isinstance(more, list | tuple) else []
        ):
            yield from nested_datasets(each, depth - 1)


def _name(each: object) -> str:
    return getattr(each, "__name__", None) or type(each).__name__


_NOT_ITS_OWN = object()
