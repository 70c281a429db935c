"""The toolkit for source adapters: protocols, the sample type, and safe file access.

A source lists its samples (``refs``) and loads one of them (``load``). Pass an instance to
``fastload.pack``::

    from fastload import sources

    class Photos:
        name = "photos"
        fields = (sources.Field("image", "image"),)
        info = {}
        thread_safe = True

        def __init__(self, root):
            self.root = root

        def refs(self):
            for entry in sources.walk(self.root):
                if sources.is_image_name(entry.path):
                    yield sources.printable(entry.path)

        def load(self, ref):
            data = sources.read_bounded(self.root, sources.raw_name(ref))
            return sources.Sample({"image": sources.Encoded(data, ref)}, source=ref)

    fastload.pack(Photos("photos"), "packed")

A field with one entry per box, such as the classes, is declared with ``Field("labels", "array",
along="boxes")``. The loader then drops the entries of boxes that a crop removes.

The page "Sources" (docs/sources.md) has a complete example.
"""

from fastload._pack.files import is_image_name, printable, raw_name, read_bounded, walk
from fastload._pack.sources.base import Encoded, Sample, Source, StreamSource
from fastload._store.fields import Field
from fastload.errors import BadImage

__all__ = [
    "BadImage",
    "Encoded",
    "Field",
    "Sample",
    "Source",
    "StreamSource",
    "is_image_name",
    "printable",
    "raw_name",
    "read_bounded",
    "walk",
]
