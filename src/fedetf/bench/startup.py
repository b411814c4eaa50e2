"""How long it takes before anything happens: commands that only show something, and pictures that are decoded."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedetf.bench.rows import Row
from fedetf.files import make_folder

IMPORT = ["-c", "import torch"]
LIST = ["-m", "fedetf", "list", "methods"]
# In a process of its own, so that nothing is imported or mapped before; only the loading itself is timed.
LOAD = """
import sys, time
from fedetf.data import load_dataset
from fedetf.settings import DataSettings
began = time.perf_counter()
load_dataset(DataSettings(name=sys.argv[1]), seed=7)
print(time.perf_counter() - began)
"""


def start_up(scale: float, repeats: int) -> list[Row]:
    """Commands against the import of torch, and pictures from the cache against pictures that are decoded."""
    seconds: dict[str, list[float]] = {"import torch": [], "fedetf list methods": []}
    for _ in range(max(repeats // 2, 2)):
        for name, command in zip(seconds, (IMPORT, LIST), strict=True):
            began = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    torch, listing = (statistics.median(times) for times in seconds.values())
    pictures = max(int(10_000 * scale), 100)
    first, second = loading(pictures)
    return [
        Row("import torch", torch, "s"),
        Row("fedetf list methods", listing, "s", listing / torch, "import torch"),
        Row(f"{pictures:,} pictures, decoded", first, "s"),
        Row(f"{pictures:,} pictures, from the cache", second, "s", first / second, "as fast as decoding"),
    ]


def loading(pictures: int) -> tuple[float, float]:
    """The seconds that so many pictures of 32×32 pixels take the first time, and the second."""
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder) / "data", pictures)
        environment = {**os.environ, "FEDETF_CACHE": f"{folder}/cache"}
        command = [sys.executable, "-c", LOAD, f"{folder}/data"]
        taken = [
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            for _ in range(2)
        ]
    return float(taken[0]), float(taken[1])


def write_pictures(folder: Path, pictures: int) -> None:
    """Parquet files of noise in colour, as PNG; a tenth of them to test with."""
    import io

    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    make_folder(folder)
    noise = np.random.default_rng(0).integers(0, 256, (pictures, 32, 32, 3), np.uint8)

    def png(pixels: np.typing.NDArray[np.uint8]) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    coded = [{"bytes": png(pixels)} for pixels in noise]
    for split, rows in (("train", slice(pictures // 10, None)), ("test", slice(pictures // 10))):
        table = pyarrow.table({"image": coded[rows], "label": [i % 10 for i in range(pictures)][rows]})
        pyarrow.parquet.write_table(table, folder / f"{split}.parquet")
