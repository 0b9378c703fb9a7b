"""Make assets/blocks.gif, sequences filling and freeing blocks, and assets/blocks.png, one still of it.

usage: python tools/make_blocks_picture.py [FOLDER]     (assets/ when none is named)

Every frame is a real state of a BlockManager: 16 blocks of 16 slots, six requests that come, grow token by token and
leave. The same command gives the same pictures.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from minipaged.block_manager import BlockManager
from minipaged.plots.base import Picture
from minipaged.plots.ch07 import pool_now

ROOT = Path(__file__).resolve().parent.parent
NUM_BLOCKS, BLOCK_SIZE, STEPS, STILL = 16, 16, 98, 52
REQUESTS = {  # step of arrival, prompt, output
    0: (0, 20, 56),
    1: (4, 44, 32),
    2: (10, 12, 80),
    3: (30, 20, 30),
    4: (48, 34, 40),
    5: (64, 20, 30),
}
EVERY = 2  # steps a frame
WIDTH = 760  # pixels


def states() -> Iterator[BlockManager]:
    """The block manager after every step; it ends empty, as it began, so that the loop closes."""
    manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    for step in range(STEPS):
        for seq_id in manager.seq_ids:
            arrival, _, output = REQUESTS[seq_id]
            if step == arrival + output:
                manager.free(seq_id)
            else:
                manager.append_slots(seq_id)
        for seq_id, (arrival, prompt, _) in REQUESTS.items():
            if step == arrival:
                manager.allocate(seq_id, range(prompt))
        yield manager


def frame(manager: BlockManager) -> Picture:
    tables = {seq: (manager.block_table(seq), manager.num_tokens(seq)) for seq in manager.seq_ids}
    return pool_now(tables, NUM_BLOCKS, BLOCK_SIZE)


def small(picture: Picture) -> Image.Image:
    image = Image.open(io.BytesIO(picture.png())).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def above_each_other(images: list[Image.Image]) -> Image.Image:
    tall = Image.new("RGB", (images[0].width, images[0].height * len(images)))
    for row, image in enumerate(images):
        tall.paste(image, (0, row * image.height))
    return tall


def main(folder: Path) -> int:
    frames = []
    for step, manager in enumerate(states()):
        if step == STILL:
            frame(manager).save(folder / "blocks.png")
        if step % EVERY == 0:
            frames.append(small(frame(manager)))
    palette = above_each_other(frames[::6]).quantize(64)  # one palette for all frames: no colour may flicker
    paged = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    target = folder / "blocks.gif"
    paged[0].save(target, save_all=True, append_images=paged[1:], duration=140, loop=0, optimize=True)
    print(f"{target}: {len(paged)} frames, {target.stat().st_size / 1e3:.0f} kB; {folder / 'blocks.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "assets"))
