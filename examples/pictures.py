"""Keep pictures in a blob column and read only the needed bytes, with a check after every step.

    python examples/pictures.py [--dir FOLDER]

The handwritten digits of scikit-learn become PNG files in a blob column. A query reads 8 bytes of each file
to get its size; only displayed pictures are read completely. The result is FOLDER/pictures.png.
Needs PySpark, scikit-learn, Pillow and Java; runs in half a minute.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from _steps import check, confirm, run_steps
from PIL import Image
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import spark_lance

SIDE = 64
SHOWN = 8
# Where a PNG file has its width and height, as two numbers of 4 bytes.
HEADER = 16


def png(pixels: np.ndarray) -> bytes:
    """Return a digit as a PNG file; every third one is twice as wide."""
    side = SIDE * (1 + int(pixels.sum()) % 3 // 2)
    out = io.BytesIO()
    scaled = Image.fromarray((255 - pixels * 15).astype(np.uint8)).resize((side, SIDE))
    scaled.save(out, "PNG")
    return out.getvalue()


def run(spark: SparkSession, path: str) -> None:
    """Store the digits as files and show some."""
    spark_lance.enable(spark)
    data = load_digits()
    files = [png(pixels) for pixels in data.images[:200]]
    labels = data.target[:200].tolist()
    rows = spark.createDataFrame(
        [(i, labels[i], files[i]) for i in range(len(files))], "id bigint, digit int, picture binary"
    )
    rows.write.format("lance").mode("overwrite").option("picture.lance.encoding", "blob").save(path)

    # This reads no bytes of blobs: the column has their sizes.
    frame = spark.read.format("lance").load(path)
    total = frame.selectExpr("sum(picture.size)").first()
    check("bytes of all pictures", total and total[0], sum(map(len, files)))

    # Read a range of each blob.
    header = f"lance_blob(picture, {HEADER}, 8)"
    sizes = frame.selectExpr(
        f"conv(hex(substring({header}, 1, 4)), 16, 10) AS width",
        f"conv(hex(substring({header}, 5, 4)), 16, 10) AS height",
    )
    blobs = {
        (row.width, row.height): row["count"] for row in sizes.groupBy("width", "height").count().collect()
    }
    confirm(
        "sizes of pictures", blobs, set(blobs) <= {("64", "64"), ("128", "64")} and sum(blobs.values()) == 200
    )

    # Read all bytes of a few blobs.
    wide = spark.sql(
        f"SELECT digit, lance_blob(picture) AS file FROM lance.`{path}` "
        f"WHERE conv(hex(lance_blob(picture, {HEADER}, 4)), 16, 10) = {SIDE} ORDER BY digit, id"
    )
    sheet = Image.new("L", (SIDE * SHOWN, SIDE * 10), 255)
    columns = [0] * 10
    for row in wide.collect():
        if columns[row.digit] < SHOWN:
            sheet.paste(Image.open(io.BytesIO(row.file)), (SIDE * columns[row.digit], SIDE * row.digit))
            columns[row.digit] += 1
    target = Path(path).parent / "pictures.png"
    sheet.save(target)
    confirm("digits in a row of the sheet", columns, min(columns) >= 1)
    with Image.open(target) as picture:
        check("size of the sheet", picture.size, (SIDE * SHOWN, SIDE * 10))

    # As a plain column of bytes; blobs that are not wanted are left out.
    both = spark.read.format("lance").option("blob_handling", "picture=bytes").load(path)
    first = both.where("id = 0").first()
    confirm("the first picture as it was", len(files[0]), bool(first and bytes(first.picture) == files[0]))
    without = spark.read.format("lance").option("blob_handling", "none").load(path)
    check("columns without blobs", without.columns, ["id", "digit"])


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "pictures", run))
