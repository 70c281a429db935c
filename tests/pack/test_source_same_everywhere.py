"""A source yields the same samples in any thread and process. Resume depends on it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastload._pack.sources.base import Source
from fastload._pack.sources.detect import open_source
from tests.source_contract import image_bytes, put_image

N = 12


def _folder(root: Path) -> Path:
    for i in range(N):
        put_image(root / f"class {i % 5}" / f"{i}.jpg", i)
    return root


def _list(root: Path) -> Path:
    rows = [f"img/{i}.jpg,name {i % 4},{i}" for i in range(N)]
    for i in range(N):
        put_image(root / "img" / f"{i}.jpg", i)
    (root / "l.csv").write_text("\n".join(["path,label,n", *rows]))
    return root / "l.csv"


def _coco(root: Path) -> Path:
    images = [{"id": 100 - i, "file_name": f"{i}.jpg", "width": 16, "height": 16} for i in range(N)]
    boxes = [
        {"id": i, "image_id": 100 - i % N, "category_id": i % 3, "bbox": [i, i, 2, 2]}
        for i in range(3 * N)
    ]
    for i in range(N):
        put_image(root / f"{i}.jpg", i)
    table = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": i, "name": f"c{i}"} for i in range(3)],
    }
    (root / "coco.json").write_text(json.dumps(table))
    return root / "coco.json"


def _tar(root: Path) -> Path:
    with tarfile.open(root / "x.tar", "w") as tar:
        for i in range(N):
            for extension, data in (
                ("jpg", image_bytes(i)),
                ("cls", b"%d" % i),
                ("a.txt", b"a"),
                ("b.txt", b"b"),
            ):
                info = tarfile.TarInfo(f"{i}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return root / "x.tar"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "folder": _folder,
    "lists": _list,
    "coco": _coco,
    "webdataset": _tar,
}


@pytest.mark.parametrize("form", MAKERS)
def test_concurrent_loads_return_the_same_samples(tmp_path: Path, form: str) -> None:
    source = open_source(MAKERS[form](tmp_path))
    assert isinstance(source, Source)
    assert source.thread_safe
    refs = list(source.refs())
    assert len(refs) == N
    alone = [repr(source.load(ref)) for ref in refs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda ref: repr(source.load(ref)), refs * 20))
    assert together == alone * 20


SCRIPT = """
import json, sys
from fastload._pack.sources.detect import open_source
for path in sys.argv[1:]:
    source = open_source(path)
    print(source.name, source.fields, json.dumps(source.info), json.dumps(list(source.refs())))
"""


def test_refs_are_equal_for_any_hash_seed(tmp_path: Path) -> None:
    paths = []
    for form, make in MAKERS.items():
        (tmp_path / form).mkdir()
        paths.append(str(make(tmp_path / form)))
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *paths],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=600,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert said[0] == said[1] == said[2]
    assert said[0].count(b"\n") == len(MAKERS)
