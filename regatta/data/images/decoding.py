"""One JPEG or PNG file to pixels of a given shape, whatever it holds."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from regatta.data.images.source import Pixels, Shape
from regatta.data.problems import BadImage

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("JPEG", "PNG")
_MOST_PIXELS = 100_000_000  # 300 MB in memory; of a JPEG only what is needed is decoded
_NEEDS = "images need Pillow: pip install pillow"
# Deeper than 8 bits: by mode, what the largest value is.
_DEEP = {"I;16": 65535, "I;16B": 65535, "I;16L": 65535, "I": 65535, "F": 1.0}


def decoded(content: bytes, shape: Shape) -> tuple[Pixels, str]:
    """The middle square, [channel, row, column], and what was unusual. Raises BadImage."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise ValueError(_NEEDS) from None
    if not content:
        raise BadImage("unreadable image", "it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is too large is refused below
            file = Image.open(io.BytesIO(content), formats=_FORMATS)
        pixels = file.width * file.height
        if file.format == "JPEG":  # it can be decoded at an eighth of its size
            file.draft(None, (shape.size, shape.size))
        if file.width * file.height > _MOST_PIXELS:
            raise BadImage("huge image", f"{pixels / 1e6:,.0f} million pixels")
        file.load()
        unusual = _unusual(file)
        image = _coloured(ImageOps.exif_transpose(file), shape.channels)
        image = ImageOps.fit(image, (shape.size, shape.size), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError:
        raise BadImage("huge image", "more pixels than anybody would decode") from None
    except UnidentifiedImageError:
        raise BadImage("unreadable image", f"it is neither {' nor '.join(_FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, EOFError, OverflowError) as error:
        kind = "truncated image" if "truncated" in str(error) else "unreadable image"
        raise BadImage(kind, str(error)) from None
    array = np.asarray(image)
    return np.ascontiguousarray(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)), unusual


def _unusual(image: Image) -> str:
    if image.mode in _DEEP:
        return "more than 8 bits"
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return "transparent"
    return {"CMYK": "CMYK", "P": "palette", "1": "black and white"}.get(image.mode, "")


def _coloured(image: Image, channels: int) -> Image:
    """In 8 bits a channel; what is transparent lies on white."""
    from PIL import Image as images

    if image.mode in _DEEP:
        values = np.asarray(image, dtype=np.float64) * (255 / _DEEP[image.mode])
        image = images.fromarray(values.clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = images.new("RGBA", image.size, "white")
        image = images.alpha_composite(white, image)
    return image.convert("RGB" if channels == 3 else "L")
