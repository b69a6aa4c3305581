"""The pictures in docs/images: the pages that kgdist writes, and the one it serves, as a browser shows them.

`python docs/pictures.py [FOLDER]` trains what is to be seen on the graph that comes with the package, some minutes on two cores,
and photographs it in light and dark. Runs that FOLDER (build/pictures) has already are taken as they are. It needs Chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.browser import Browser, browser  # noqa: E402  the script may be started anywhere

IMAGES = ROOT / "docs/images"
MOST_BYTES = 120_000
WIDTH = 1200
# Options of each run; one process with a seed, so that every digit repeats.
RUNS = {
    "RotatE": "--model_name RotatE",
    "ComplEx": "--model_name ComplEx",
    "DistMult": "--model_name DistMult",
    "TransE": "--model_name TransE_l2",
}
TRAIN = "--dataset wordnet --preset --valid --test --seed 0 --num_proc 1 --quiet"
TUNE = "--dataset wordnet --model_name ComplEx --hidden_dim 100 --max_step 600 --trials 24 --eval_percent .3 --seed 0 --jobs 1"


class Picture(NamedTuple):
    """One picture: the page, where in it the picture begins (a CSS selector; none: at the top), and its height in pixels."""

    page: str
    height: int
    begins: str = ""


PICTURES = {
    "report": Picture("ckpts/RotatE_wordnet_0/report.html", 1240),
    "answers": Picture("ckpts/RotatE_wordnet_0/report.html", 1240, "#answers"),
    "comparison": Picture("compared.html", 1240),
    "inspection": Picture("inspected.html", 1240),
    "search": Picture("tune/report.html", 1240),
    "explorer": Picture("#entity=dog.n.01", 1240),
}


def command(name: str, words: str, folder: Path) -> None:
    """Run a command of kgdist in `folder`. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", f"kgdist.cli.{name}", *words.split()], cwd=folder, check=True)


def make(folder: Path) -> None:
    """Write the pages that are to be photographed below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for words in RUNS.values():
        run = f"ckpts/{words.split()[-1]}_wordnet_0"
        if not (folder / run / "test.json").exists():
            command("train", f"{words} {TRAIN}", folder)
    command("tune", f"{TUNE} --report --quiet", folder)  # goes on with the trials that are there
    command("eval", "ckpts/RotatE_wordnet_0 --report --quiet", folder)
    command(
        "compare", f"{' '.join(f'ckpts/{words.split()[-1]}_wordnet_0' for words in RUNS.values())} --output compared.html", folder
    )
    command("inspect", "wordnet --report inspected.html --quiet", folder)


def photograph(eyes: Browser, address: Path | str, picture: Picture, name: str, folder: Path) -> None:
    """Write docs/images/<name>-light.webp and -dark.webp. Raises RuntimeError if one is too large."""
    for scheme in ("light", "dark"):
        eyes.call("Page.navigate", url="about:blank")  # or else only the part after # would change
        eyes.open(address, width=WIDTH, dark=scheme == "dark", height=picture.height)
        eyes.settle()
        if picture.begins:
            eyes.ask(f"scrollTo(0, document.querySelector({picture.begins!r}).getBoundingClientRect().top - 12)")
            eyes.settle()
        shot, target = folder / "shot.png", IMAGES / f"{name}-{scheme}.webp"
        eyes.photograph(shot, whole=False)
        with Image.open(shot) as image:
            image.convert("RGB").save(target, lossless=True, method=6)
        if target.stat().st_size > MOST_BYTES:
            raise RuntimeError(f"{target}: {target.stat().st_size} bytes, more than {MOST_BYTES}")
        print(target.relative_to(ROOT), target.stat().st_size)


def main(folder: Path) -> None:
    """Make the pages, start a server, and photograph all."""
    make(folder)
    words = [sys.executable, "-m", "kgdist.cli.serve", "ckpts/RotatE_wordnet_0", "--port", "0"]
    server = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+?:\d+", server.stdout.readline())
        if found is None:
            raise RuntimeError("kgdist-serve did not start")
        with browser(folder / "browser") as eyes:
            for name, picture in PICTURES.items():
                served = picture.page.startswith("#")
                photograph(eyes, f"{found[0]}/{picture.page}" if served else folder / picture.page, picture, name, folder)
    finally:
        server.terminate()
        server.wait(timeout=60)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/pictures").resolve())
