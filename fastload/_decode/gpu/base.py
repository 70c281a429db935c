"""What the GPU backends have in common: checks, results of a batch, writing pixels to its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.backend import STAGES, DecodeBatch, DecodeResult, check_threads
from fastload._decode.gpu import requirements
from fastload._decode.gpu.cpu_fallback import CpuFallback
from fastload._decode.gpu.staging import StreamCutter
from fastload.errors import ConfigError, MissingPart

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows


class GpuBackend:
    """Decodes on ``device``; ``threads`` cut streams, decode Huffman codes and run the fallback.

    ``hardware``: the GPU's JPEG engine decodes, which is allowed only after ``fastload selftest``
    has passed on this machine.
    """

    name: ClassVar[str]
    needs: ClassVar[requirements.Requirements]
    adjustable_threads: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False
    checks_crc: ClassVar[bool] = True  # while the streams are cut
    edge_error: ClassVar[int]
    max_cut_threads: ClassVar[int] = 1024

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        """The package, driver or library that is missing, and the command that adds it."""
        return cls.needs.missing(device, requirements.read_facts(device), hardware=hardware)

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        self.device = requirements.checked_device(device)
        if hardware and self.device.type == "cpu":
            raise ConfigError(
                "hardware=True: the JPEG engine is a part of GPUs; with device='cpu' leave it out"
            )
        self.threads = check_threads(threads)
        wrong = self.missing(self.device, hardware=hardware)
        if wrong:
            raise MissingPart(f"decoding with backend={self.name!r} on {self.device}: {wrong}")
        self._hardware = hardware
        self._cutter = StreamCutter(threads=min(self.threads, self.max_cut_threads))
        self._fallback = CpuFallback(threads=self.threads)

    def check_output(self, batch: DecodeBatch) -> None:
        """Raises ConfigError if the output is on another device."""
        found = torch.as_tensor(batch.output).device
        if found != self.device:
            raise ConfigError(f"output: expected on {self.device}, found on {found}")

    def done(self, ticket: Any) -> bool:
        """The libraries do not tell without waiting."""
        del ticket
        return False

    def unfinished(self, ticket: Any) -> list[int]:
        """The libraries do not tell."""
        del ticket
        return []

    def close(self) -> None:
        """Ends the CPU threads; subclasses end their own work first."""
        self._cutter.close()
        self._fallback.close()


class BatchOutcome:
    """Collects how a batch went. Every sample is OK until its row is set otherwise."""

    def __init__(self, batch: DecodeBatch) -> None:
        n = len(batch.requests)
        self._output = batch.output
        self.status: NDArray[np.uint8] = np.zeros(n, np.uint8)
        self.times_ns: NDArray[np.uint32] = np.zeros((n, len(STAGES)), np.uint32)
        self.reasons: dict[int, str] = {}

    def add_time(self, stage: str, total_ns: int, rows: Rows) -> None:
        """Divides the time of all these rows evenly among them."""
        if len(rows):
            self.times_ns[rows, STAGES.index(stage)] = min(total_ns // len(rows), 2**32 - 1)

    def add(self, rows: Rows, result: DecodeResult) -> None:
        """Sets these rows to what a CPU backend reported."""
        self.status[rows] = result.status
        self.times_ns[rows] = result.times_ns
        self.reasons.update({int(rows[row]): why for row, why in result.reasons.items()})

    def result(self) -> DecodeResult:
        """What ``collect`` returns."""
        return DecodeResult(self.status, self.times_ns, self.reasons, self._output)


def write_pixels(pixels: torch.Tensor, batch: DecodeBatch, rows: Rows) -> None:
    """Writes uint8 (k, H, W, C), RGB or gray, into slots ``rows`` of the output.

    Applies color order, normalization, dtype and layout on the device of both, queued on the
    current stream. The bits are those of the native core: float32 arithmetic, then rounded to the
    dtype of the output.
    """
    output = torch.as_tensor(batch.output)
    wanted = batch.pixels
    values = pixels.flip(-1) if wanted.color == "bgr" else pixels
    if output.dtype != torch.uint8:
        channels = pixels.shape[-1]
        values = values.to(torch.float32)
        for numbers, neutral, apply in (
            (wanted.mean_values(channels), 0.0, values.sub_),
            (wanted.std_values(channels), 1.0, values.div_),
        ):
            if any(number != neutral for number in numbers):
                apply(torch.tensor(numbers, dtype=torch.float32, device=values.device))
    if wanted.layout == "nchw":
        values = values.permute(0, 3, 1, 2)
    if len(rows) == len(batch.requests):
        output[: len(rows)].copy_(values)
    else:
        output.index_copy_(0, torch.from_numpy(rows).to(output.device), values.to(output.dtype))
