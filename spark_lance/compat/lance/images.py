"""Image columns as Arrow extension types: URIs, encoded bytes, or pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.io.store import open_store

__all__ = [
    "EncodedImageArray",
    "EncodedImageType",
    "FixedShapeImageTensorArray",
    "FixedShapeImageTensorType",
    "ImageArray",
    "ImageURIArray",
    "ImageURIType",
]


class ImageArray(pa.ExtensionArray):  # type: ignore[misc]
    """An array of images: the base class of the three kinds."""

    @classmethod
    def from_array(cls, images: Any) -> ImageArray:
        """Return an image array for the type of the data: strings are URIs, bytes are encoded images.

        Raises:
            OptionTypeError: the data has another type.
        """
        if isinstance(images, ImageArray):
            return images
        if isinstance(images, pa.StringArray | pa.LargeStringArray):
            return _typed_array(ImageURIType(images.type), images, ImageURIArray)
        if isinstance(images, pa.BinaryArray | pa.LargeBinaryArray):
            return _typed_array(EncodedImageType(images.type), images, EncodedImageArray)
        if isinstance(images, pa.FixedShapeTensorArray):
            kind = FixedShapeImageTensorType(images.type.value_type, images.type.shape)
            return _typed_array(kind, images.storage, FixedShapeImageTensorArray)
        if isinstance(images, Iterable) and not isinstance(images, pa.Array):
            return ImageURIArray.from_uris(images)
        raise OptionTypeError(f"an array of {type(images).__name__} cannot hold images")


_Images = TypeVar("_Images", bound="ImageArray")


def _typed_array(kind: pa.ExtensionType, storage: pa.Array, images: type[_Images]) -> _Images:
    """Return the storage as an extension array of type `kind` and class `images`."""
    array = pa.ExtensionArray.from_storage(kind, storage)
    assert isinstance(array, images)
    return array


class ImageURIArray(ImageArray):
    """Images as URIs."""

    @classmethod
    def from_uris(cls, uris: Any) -> ImageURIArray:
        """Return an array of image URIs or paths, from an Arrow array of strings or an iterable."""
        if not isinstance(uris, pa.StringArray | pa.LargeStringArray):
            uris = pa.array([None if uri is None else str(uri) for uri in uris], pa.string())
        return _typed_array(ImageURIType(uris.type), uris, ImageURIArray)

    def read_uris(self, storage_type: pa.DataType | None = None) -> EncodedImageArray:
        """Read the images and return their bytes; a null URI gives null.

        Raises:
            FileNotFoundError, OSError: an image cannot be read.
        """
        kind = storage_type or pa.binary()
        contents: list[bytes | None] = []
        for uri in self.storage.to_pylist():
            if uri is None:
                contents.append(None)
                continue
            store, path = open_store(uri)
            contents.append(store.read(path))
        return _typed_array(EncodedImageType(kind), pa.array(contents, kind), EncodedImageArray)


class EncodedImageArray(ImageArray):
    """Images as encoded bytes, such as PNG or JPEG."""

    def to_tensor(self, decoder: Callable[[pa.BinaryArray], Any] | None = None) -> FixedShapeImageTensorArray:
        """Decode the images, which must have the same shape.

        Args:
            decoder: a function from an array of bytes to an array of pixels, with the images along its
                first axis; by default the package Pillow decodes.

        Raises:
            OptionError: an image is null, the images have different shapes, or Pillow is needed and not
                installed.
        """
        pixels = np.asarray(_decoded(self.storage) if decoder is None else decoder(self.storage))
        kind = FixedShapeImageTensorType(pa.from_numpy_dtype(pixels.dtype), pixels.shape[1:])
        flat = pa.array(np.ascontiguousarray(pixels).reshape(-1))
        return _typed_array(
            kind,
            pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type),
            FixedShapeImageTensorArray,
        )


class FixedShapeImageTensorArray(ImageArray):
    """Images as pixels."""

    def to_numpy(self, zero_copy_only: bool = False) -> np.ndarray[Any, Any]:
        """Return the pixels as an array with the images along its first axis.

        Raises:
            OptionError: an image is null.
        """
        _check_no_nulls(self.storage)
        flat = self.storage.flatten().to_numpy(zero_copy_only=zero_copy_only)
        return flat.reshape(len(self), *self.type.shape)  # type: ignore[no-any-return]

    def to_encoded(self, encoder: Callable[[Any], pa.Array] | None = None) -> EncodedImageArray:
        """Encode the images.

        Args:
            encoder: a function from pixels to an array of bytes; by default Pillow encodes PNG.

        Raises:
            OptionError: an image is null, or Pillow is needed and not installed.
        """
        encoded = _encoded(self.to_numpy()) if encoder is None else encoder(self.to_numpy())
        return _typed_array(EncodedImageType(encoded.type), encoded, EncodedImageArray)


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise OptionError(
            "images are decoded by the package Pillow: install it, or give a function"
        ) from error


def _check_no_nulls(images: pa.Array) -> None:
    """Check that no image is null, because a tensor cannot represent it.

    Raises:
        OptionError: an image is null.
    """
    if images.null_count:
        place = images.is_null().index(True).as_py()
        raise OptionError(f"image {place} is null, and a tensor has no nulls: call drop_null() on the images")


def _decoded(images: pa.Array) -> np.ndarray[Any, Any]:
    _check_no_nulls(images)
    image = _pillow()
    pixels = [np.asarray(image.open(io.BytesIO(data))) for data in images.to_pylist()]
    shapes = {one.shape for one in pixels}
    if len(shapes) > 1:
        raise OptionError(f"Shapes of all inputs must match: there are {sorted(shapes)}")
    return np.stack([one if one.ndim == 3 else one[..., None] for one in pixels])


def _encoded(pixels: np.ndarray[Any, Any]) -> pa.Array:
    image = _pillow()
    contents = []
    for one in pixels:
        data = io.BytesIO()
        image.fromarray(one[..., 0] if one.shape[-1] == 1 else one).save(data, "PNG")
        contents.append(data.getvalue())
    return pa.array(contents, pa.binary())


class ImageURIType(pa.ExtensionType):  # type: ignore[misc]
    """The type of image URIs, stored as strings."""

    def __init__(self, storage_type: pa.DataType | None = None) -> None:
        super().__init__(storage_type or pa.string(), "lance.arrow.image_uri")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> ImageURIType:
        return cls(storage_type)

    def __arrow_ext_class__(self) -> type[ImageURIArray]:
        return ImageURIArray


class EncodedImageType(pa.ExtensionType):  # type: ignore[misc]
    """The type of encoded images, stored as bytes."""

    def __init__(self, storage_type: pa.DataType | None = None) -> None:
        super().__init__(storage_type or pa.binary(), "lance.arrow.encoded_image")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> EncodedImageType:
        return cls(storage_type)

    def __arrow_ext_class__(self) -> type[EncodedImageArray]:
        return EncodedImageArray


class FixedShapeImageTensorType(pa.ExtensionType):  # type: ignore[misc]
    """The type of images as pixels, all with one shape: height, width, channels."""

    def __init__(self, arrow_type: pa.DataType, shape: Iterable[int]) -> None:
        self.shape = tuple(shape)
        self.arrow_type = arrow_type
        size = int(np.prod(self.shape))
        super().__init__(pa.list_(arrow_type, size), "lance.arrow.fixed_shape_image_tensor")

    def __arrow_ext_serialize__(self) -> bytes:
        return ",".join(map(str, self.shape)).encode()

    @classmethod
    def __arrow_ext_deserialize__(
        cls, storage_type: pa.DataType, serialized: bytes
    ) -> FixedShapeImageTensorType:
        return cls(storage_type.value_type, [int(part) for part in serialized.decode().split(",")])

    def __arrow_ext_class__(self) -> type[FixedShapeImageTensorArray]:
        return FixedShapeImageTensorArray


for _kind in (ImageURIType(), EncodedImageType(), FixedShapeImageTensorType(pa.uint8(), (1, 1, 1))):
    # Another package may have registered a type of this name.
    with suppress(pa.ArrowKeyError):
        pa.register_extension_type(_kind)
