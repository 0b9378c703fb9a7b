"""Every word that a reader sees on a widget, in one table; another language stands beside it in words_<code>.py.

Keys are "chapter.widget.part". Values are format strings; the numbers are filled in by the widget.
"""

from __future__ import annotations

from typing import Any

from minipaged.language import singular, words

WORDS: dict[str, str] = {
    # 00 start here
    "00.passes.question": "question",
    "00.passes.step": "passes so far",
    "00.passes.cache": "with the cache",
    "00.passes.above": "Press play, or move the slider: one step is one pass of the model.",
    # 01 autoregressive decoding
    "01.any.prompt": "prompt",
    "01.any.temperature": "temperature",
    "01.bars.top_k": "top-k (0: off)",
    "01.bars.top_p": "top-p (1: off)",
    "01.bars.min_p": "min-p (0: off)",
    "01.bars.above": "The outline is the model's own distribution; the solid bar is what a token is drawn from.",
    "01.dart.dart": "dart",
    "01.dart.above": "The {keep} most probable tokens, in the order of their ids, share a strip of length 1. Throw.",
    # 02 tensor shapes
    "02.memory.layout": "layout",
    "02.memory.view": "K as a view of k_proj",
    "02.memory.copy": "K copied for the cache",
    "02.memory.head": "head",
    "02.memory.token": "token",
    "02.memory.number": "number",
    "02.shapes.batch": "batch",
    "02.shapes.length": "length (tokens)",
    "02.shapes.heads": "query heads",
    "02.shapes.kv_heads": "KV heads",
    "02.shapes.head_dim": "head_dim",
    "02.shapes.dtype": "dtype",
    "02.shapes.uneven": "{heads} query heads cannot form equal groups for {kv_heads} KV heads; choose {fitting}.",
    # 03 attention
    "03.explorer.where": "Layer {layer}, head {head}",
    "03.explorer.token": "token that looks",
    "03.explorer.layer": "layer",
    "03.explorer.head": "head",
    "03.explorer.mask": "hide the future (causal mask)",
    "03.rope.shift": "move both by",
    "03.rope.distance": "distance",
    "03.rope.pair": "pair of numbers shown",
    "03.rope.turn": "Pair {pair} turns by {degrees:.2g} degrees a token.",
    # 04 naive KV cache
    "04.pass.length": "tokens so far",
    "04.pass.new": "new in this pass",
    "04.step.model": "model",
    "04.step.gpu": "GPU",
    "04.step.held": "tokens in each sequence",
    "04.step.batch": "sequences in the batch",
    # 05 KV cache size
    "05.calculator.model": "model",
    "05.calculator.gpu": "GPU",
    "05.calculator.dtype": "K and V in",
    "05.calculator.weight_dtype": "weights in",
    "05.calculator.batch": "batch",
    "05.calculator.seq_len": "sequence length",
    "05.calculator.tensor_parallel": "tensor parallel",
    "05.calculator.block_size": "block size",
    "05.calculator.reserve": "reserve, GiB",
    "05.advice": "What would fit: {ways}.",
    "05.advice.none": "No single change of these controls makes it fit.",
    "05.advice.or": "; or ",
    "05.advice.batch": "a batch of at most {value}",
    "05.advice.length": "at most {value:,} tokens",
    "05.advice.dtype": "K and V in {value}",
    "05.advice.gpus": "{value} GPUs",
    "05.advice.gpu": "one {value}",
    "05.growth.models": "models",
    "05.growth.longest": "longest",
    "05.growth.dtype": "K and V in",
    "05.growth.choose": "Choose at least one model (hold Ctrl or Cmd to choose several).",
    "05.tab.calculator": "one GPU",
    "05.tab.growth": "growth over length",
    # 06 fragmentation
    "06.player.step": "step",
    "06.player.allocator": "allocator",
    "06.player.play": "play",
    "06.whatif.prompt": "mean prompt",
    "06.whatif.output": "mean output",
    "06.whatif.spread": "spread (std / mean)",
    "06.whatif.max_len": "maximum length",
    "06.whatif.pool": "pool, slots",
    # 07 paged KV cache
    "07.pour.above": (
        "Sequence A is yours. Sequence B is a neighbour in the same pool. The bold frame follows A's newest token."
    ),
    "07.pour.text": "A's prompt",
    "07.pour.steps": "tokens generated",
    "07.pour.free": "B ends half-way",
    "07.pour.order": "deal the blocks anew",
    "07.choose.tokens": "tokens of a request",
    "07.choose.size": "block size",
    # 08 paged attention
    "08.stepper.above": (
        "One query against all keys, one block of the table at a time. Yellow: the block being read now."
    ),
    "08.stepper.step": "blocks read",
    "08.stepper.head": "head",
    "08.stepper.order": "order of reading",
    "08.stepper.forward": "as they come",
    "08.stepper.backward": "from the last to the first",
    "08.stepper.shuffled": "shuffled",
    "08.stepper.forget": "forget to shrink",
    # 09 Triton kernel
    "09.program": "program",
    "09.program.play": "play",
    "09.program.above": (
        "Each program of the launch handles one sequence and one KV head. Step through them: solid cells with a dot "
        "are what that program read."
    ),
    # 10 continuous batching
    "10.serve.above": "Twelve requests come one after another. No model runs here: the scheduler needs only lengths.",
    "10.serve.blocks": "blocks",
    "10.serve.chunk": "tokens a step",
    "10.serve.policy": "policy",
    "10.serve.load": "steps between arrivals",
    # 11 sharing
    "11.fork.lengths": "Prompt {prompt}, written by each {written}:",
    "11.fork.above": (
        "One prompt, several samples, blocks of 16. All are forked from the first; then each writes in turn; then the "
        "last ones end. The real block manager runs."
    ),
    "11.fork.prompt": "prompt tokens",
    "11.fork.n": "samples",
    "11.fork.written": "tokens written by each",
    "11.fork.ended": "samples that ended",
    "11.beams.above": (
        "The blocks of all beams. Darker: more beams name it. Dotted: given back in this step, because its beam lost."
    ),
    "11.beams.step": "step",
    "11.beams.title": "Step {step} of {steps}",
    # 13 from minipaged to vLLM
    "13.where.part": "part of minipaged",
    "13.where.above": "Choose a part. The sentence below says where it is in vLLM, and what differs there.",
    "13.table.above": "Three sequences, one pool. Below: the same page table as FlashInfer wants it.",
    "13.table.length": "tokens of {name}",
    "13.table.size": "block size",
    # 12 speculative decoding
    "12.overlap.layers": "layers of the draft",
    "12.overlap.temperature": "temperature",
    "12.overlap.top_k": "top-k",
    "12.overlap.above": (
        "The target has {layers} layers; the draft has some of the same ones. Blue is kept, dotted is rejected, orange "
        "is where a rejected guess goes."
    ),
    "12.rollback.tokens": "tokens in the text",
    "12.rollback.size": "block size",
    "12.rollback.drafted": "guesses",
    "12.rollback.kept": "of these kept",
    "12.rollback.above": "Before, in and after one pass. More than all guesses cannot be kept.",
    "12.speedup.rate": "guesses kept",
    "12.speedup.count": "guesses a pass",
    "12.speedup.cost": "price of a guess, steps",
    "12.speedup.slope": "price of a row, steps",
    "12.speedup.above": (
        "The square is your setting, the star the best draft length. A step is one pass of the target over one token."
    ),
}


def say(key: str, **values: Any) -> str:
    """The words for `key` with `values` filled in."""
    return singular(words(__package__, WORDS, key).format(**values))
