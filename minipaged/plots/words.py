"""Every word that a reader sees in a picture, in one table; another language stands beside it in words_<code>.py.

Keys are "chapter.picture.part". Values are format strings; the numbers are filled in by the picture.
"""

from __future__ import annotations

from typing import Any

from minipaged.language import language, singular, words
from minipaged.plots.fonts import drawable

WORDS: dict[str, str] = {
    # 00 start here
    "00.way.title": "Every token takes this way: {passes} turns of the loop wrote {passes} tokens",
    "00.way.sentence": (
        "The text becomes {prompt_tokens} token ids; one pass of the model turns them into {vocabulary:,} "
        "logits; the pick, “{picked}”, is appended as id {picked_id}, then again, until the end token or the limit."
    ),
    "00.way.text": "text",
    "00.way.text.note": "inside the chat template",
    "00.way.tokens": "tokens",
    "00.way.tokens.note": "pieces of text, not words",
    "00.way.ids": "token ids",
    "00.way.ids.note": "{count} numbers",
    "00.way.pass": "one pass",
    "00.way.pass.note": "{layers} layers read\nthe ids, in order",
    "00.way.logits": "logits",
    "00.way.logits.note": "{vocabulary:,} scores, one\nfor each token there is",
    "00.way.pick": "pick",
    "00.way.new": "new ids",
    "00.way.new.note": "{count} numbers; stop at the\nend token, or at the limit",
    "00.way.out": "text out",
    "00.way.out.note": "",
    "00.way.pick.note": "here: the most probable",
    "00.way.encode": "encode",
    "00.way.decode": "decode",
    "00.way.stop": "stop",
    "00.way.append": "append, again",
    "00.way.loop": "the loop: one turn = one pass = one new token",
    "00.way.chapter": "ch. {chapters}",
    "00.map.title": "{written} chapters are written, {planned} are planned; an arrow leads to what builds on it",
    "00.map.title.all": "{written} chapters; an arrow leads from what is needed to what builds on it",
    "00.map.minutes": "{n} min",
    "00.map.sentence": "The course has {chapters} chapters; the longest way through them is {chain}.",
    "00.map.planned": "planned",
    "00.map.table.head": "| chapter | what you can do afterwards | builds on | minutes | runs in |",
    "00.map.part.0": "what a model\ncomputes",
    "00.map.part.1": "what it\nremembers",
    "00.map.part.2": "memory\nin pages",
    "00.map.part.3": "an engine\nfor many",
    "00.map.title.00": "Start here",
    "00.map.does.00": "check the machine, load the model, count passes",
    "00.map.title.01": "Autoregressive decoding",
    "00.map.does.01": "write the decode loop; greedy, temperature, top-k, top-p",
    "00.map.title.02": "Tensor shapes",
    "00.map.does.02": "predict shape, strides and bytes on the way to K and V",
    "00.map.title.03": "Attention",
    "00.map.does.03": "compute one real layer by hand; say why K and V can be kept",
    "00.map.title.04": "A naive KV cache",
    "00.map.does.04": "keep K and V in two ways; prefill and decode",
    "00.map.title.05": "KV cache size",
    "00.map.does.05": "size a cache for any model and any GPU",
    "00.map.title.06": "Fragmentation",
    "00.map.does.06": "see where reserved memory is lost when many ask for it",
    "00.map.title.07": "A paged KV cache",
    "00.map.does.07": "store K and V in blocks, found through a block table",
    "00.map.title.08": "Paged attention",
    "00.map.does.08": "attention over scattered blocks, exact",
    "00.map.title.09": "A Triton kernel",
    "00.map.does.09": "write, run and compile the paged decode kernel",
    "00.map.title.10": "Continuous batching",
    "00.map.does.10": "schedule many requests in one memory budget",
    "00.map.title.11": "Sharing",
    "00.map.does.11": "share blocks: samples, beams, common prefixes",
    "00.map.title.12": "Speculative decoding",
    "00.map.does.12": "draft, verify in one pass, roll blocks back",
    "00.map.title.13": "From minipaged to vLLM",
    "00.map.does.13": "find each part in production systems",
    "00.read.title": "{passes} passes either way; what differs is what they read: {without:,} tokens or {cached:,}",
    "00.read.sentence": (
        "{passes} passes wrote {passes} tokens after a prompt of {prompt_tokens}: without a cache they read "
        "{without:,} tokens in all, with one {cached:,}."
    ),
    "00.read.without": "without the cache: {tokens:,} tokens read",
    "00.read.cached": "with the cache: {tokens:,} tokens read",
    "00.read.x": "position of the token",
    "00.read.y": "pass",
    "00.read.legend.read": "read by this pass",
    "00.read.legend.kept": "kept from earlier passes",
    "00.read.legend.new": "written by this pass",
    "00.step.title.start": "0 passes: the prompt is ready, nothing is written",
    "00.step.title": "Pass {passes} reads {read} and writes token {passes}",
    "00.step.title.stopped": "{passes} passes, {passes} tokens, then stop: {reason}",
    "00.step.one": "1 token",
    "00.step.many": "{count} tokens",
    "00.step.prompt": "prompt, {count} tokens",
    "00.step.new": "new tokens",
    "00.step.passes": "passes",
    "00.step.tokens": "new tokens",
    "00.step.read": "tokens read in all",
    "00.step.legend": (
        "·: a space      bold frame: read by this pass      hatched: written by this pass      empty: not written yet"
    ),
    "00.step.sentence": (
        "After {passes} passes there are {passes} new tokens, and {read:,} tokens were read; the text is “{text}”."
    ),
    # 01 autoregressive decoding
    "01.tokens.characters": "{n} characters",
    "01.tokens.words": "{n} words",
    "01.tokens.tokens": "{n} token ids",
    "01.tokens.bytes": "{n} bytes",
    "01.tokens.title.characters": "{parts} characters become {tokens} tokens: {split} of {parts} characters are cut",
    "01.tokens.title.words": "{parts} words become {tokens} tokens: {split} of {parts} words are cut",
    "01.tokens.sentence.characters": (
        "The text has {parts} characters and {bytes} bytes; it becomes {tokens} tokens, and {split} of the {parts} "
        "characters are made of more than one token."
    ),
    "01.tokens.sentence.words": (
        "The text has {parts} words and {bytes} bytes; it becomes {tokens} tokens, and {split} of the {parts} words "
        "are made of more than one token."
    ),
    "01.bars.kept": "after: what is drawn from",
    "01.bars.cut": "cut away",
    "01.bars.before": "before: the model's own",
    "01.bars.out": "cut",
    "01.bars.axis.all": "probability",
    "01.bars.axis": "probability   ({rest:,} more kept tokens are not shown; they share {mass:.3f})",
    "01.bars.title": "{kept:,} of {vocab:,} tokens stay; {lost:.1%} of the mass was cut away",
    "01.bars.title.all": "“{top}” leads with {p_after:.3f}; all {vocab:,} tokens share the mass",
    "01.bars.prompt": "after “{prompt}” {note}",
    "01.bars.sentence.own": (
        "All {vocab:,} tokens can be drawn; the most probable, “{top}”, has {p_after:.3f}, and the {shown} shown hold "
        "{shown_mass:.3f} together."
    ),
    "01.bars.sentence": (
        "{kept:,} of {vocab:,} tokens can still be drawn, and {lost:.1%} of the model's probability was cut away; the "
        "most probable token, “{top}”, went from {p_before:.3f} to {p_after:.3f}."
    ),
    "01.bars.sentence.all": (
        "All {vocab:,} tokens can still be drawn; the most probable, “{top}”, went from {p_before:.3f} to "
        "{p_after:.3f}."
    ),
    "01.mass.x": "number of tokens kept, most probable first (logarithmic)",
    "01.mass.y": "mass they hold together",
    "01.mass.wrong": "{percent:g}% of the vocabulary\nwould be {share:,} tokens",
    "01.mass.title": "A mass of {p:g} takes {first:,} tokens after one prompt, {second:,} after the other",
    "01.mass.sentence": (
        "Top-p {p:g} keeps {first:,} tokens after the first prompt and {second:,} after the second, of {vocab:,}; that "
        "share of the vocabulary would be {share:,} tokens, and top-p keeps it in neither."
    ),
    "01.strips.row": "{n} texts of {length}",
    "01.strips.sum": "sum {total:.3f}",
    "01.strips.title": "Every row is full: {counts} continuations, and each row adds up to 1",
    "01.strips.sentence": (
        "Rows of {counts} continuations each share one strip of length 1: a longer text only divides the place of its "
        "beginning."
    ),
    "01.product.y": "probability so far (logarithmic)",
    "01.product.title": "{n} factors below 1: the whole text has probability {title_total}",
    "01.product.sentence": (
        "The product of {n} conditional probabilities is {total}; the smallest factor, {least_p:.2g}, is the one of "
        "“{least}”."
    ),
    "01.dart.title": "The dart at {dart:.3f} lands on “{name}”, which holds {p:.1%} of the strip",
    "01.dart.sentence": (
        "The dart at {dart:.3f} lands on “{name}”, whose part of the strip goes from {left:.3f} to {right:.3f}."
    ),
    "01.frequencies.drawn": "drawn / promised",
    "01.frequencies.allowed": "what chance allows (± 2 standard deviations)",
    "01.frequencies.y": "times drawn / promised",
    "01.frequencies.name": "{name}\n({promised:.0f})",
    "01.frequencies.x": "token (times promised)",
    "01.frequencies.title": "{draws:,} draws: {inside} of {n} counts lie where chance allows",
    "01.frequencies.sentence": (
        "Of {n} tokens drawn {draws:,} times in all, {inside} were drawn as often as their probability promises, "
        "within two standard deviations."
    ),
    "01.end.y": "probability of the end token\n(logarithmic)",
    "01.end.title": "The end is a token too: near 0 until the answer is complete, then {last:.2f}",
    "01.end.sentence": (
        "Over {n} steps the end token's probability stays at or below {most}, and at the last step it is {last:.2f}."
    ),
    "01.dependence.before": "before: equal",
    "01.dependence.changed": "the changed token",
    "01.dependence.y": "distance between the\ntwo predictions",
    "01.dependence.title": "Nothing before the change moves; all {later} predictions after it do",
    "01.dependence.sentence": (
        "Before the changed token, {before} predictions stay equal; the {later} from it on differ, by {least:.2f} to "
        "{most:.2f} in total variation."
    ),
    # 02 tensor shapes
    "02.ranks.rank": "rank {rank}",
    "02.ranks.title": "Rank counts the axes: {length} numbers in a row are still rank 1",
    "02.ranks.item": "{name}: rank {rank}, shape {shape}",
    "02.ranks.sentence": "Rank is the number of axes, whatever their lengths. {named}.",
    "02.memory.title": "{name}: {sum} = {offset}",
    "02.memory.title.plain": "{name}: strides {strides}",
    "02.memory.sentence": "{name}, strides {strides}: the cell at {where} stands at {sum} = {offset} in memory.",
    "02.memory.sentence.plain": "{name}: shape {shape}, strides {strides}; each cell shows its place in memory.",
    "02.memory.strip": "memory",
    "02.word.token": "“{word}”",
    "02.word.id": "token id {id}",
    "02.word.look.up": "row",
    "02.word.embedding": "embedding",
    "02.word.layers": "layers\n0–{last}",
    "02.word.norm": "layer {layer}, norm",
    "02.word.rope": "RoPE",
    "02.word.heads": "{letter}: {width} = {count} heads of {dim}",
    "02.word.q.note": "used in this step, then dropped",
    "02.word.head": "head {head}",
    "02.word.cache": "{letter} cache {shape}",
    "02.word.title": "In layer {layer} one token becomes {q} numbers of q, {kv} of k and {kv} of v",
    "02.word.sentence": (
        "“{word}” (id {id}) is looked up as {hidden} numbers; in layer {layer} three matrices turn its hidden state "
        "into q ({heads} heads of {dim}), k and v ({kv_heads} heads of {dim} each); k and v become row {position} of "
        "every head in a K cache and a V cache of shape {shape}."
    ),
    "02.heads.query": "{count} query heads",
    "02.heads.kv": "{count} KV heads (one K and one V each)",
    "02.heads.panel": "{heads} query heads share {kv_heads}: groups of {group}",
    "02.heads.item": "{heads} query heads read {kv_heads} KV heads in groups of {group}",
    "02.heads.sentence": "Neighbouring query heads form a group that reads one KV head: {listed}.",
    "02.split.wrong": "view alone: {count} of {total} in a wrong place",
    "02.split.right": "cut, then transpose: {count} of {total}",
    "02.split.head": "head {head}",
    "02.split.token": "token {token}",
    "02.split.sentence": (
        "Cut with view alone, {strangers} of {total} numbers stand at a token or a head that is not theirs (hatched); "
        "cut and then transposed, none of the {heads} heads x {tokens} tokens has a stranger in it."
    ),
    "02.bytes.label": "{shape}   {amount}",
    "02.bytes.title": "K of one layer holds {numbers:,} numbers: {amount} in {dtype}",
    "02.bytes.sentence": (
        "K of one layer has shape {shape}: {numbers:,} numbers, {amount} in {dtype}; V takes as much again; each KV "
        "head is read by {readers}."
    ),
    "02.bytes.reader": "one query head",
    "02.bytes.readers": "{group} query heads",
    "02.read.label": "{time} ms   ×{ratio}",
    "02.read.axis": "milliseconds to read K and V once (logarithmic)",
    "02.read.title": "The slowest way takes {ratio} times as long as the one marked ×1",
    "02.read.sentence": (
        "Reading {amount} of K and V once takes: {listed}; {slowest} needs {ratio} times as long as {base}."
    ),
    # 03 attention
    "03.row.title": "{where}: “{query}” gives a share of {best:.0%} to “{looked}”",
    "03.row.keys": "keys: who is looked at (darker: a larger share)",
    "03.row.queries": "queries: who looks",
    "03.row.share": "lit row, %",
    "03.row.percent": "{share:.0%}",
    "03.row.sentence": "{where}: in its row, “{query}” gives a share of {best:.0%} to “{looked}”; {rest}.",
    "03.row.hidden.0": "no token stands after it",
    "03.row.hidden.1": "the one token after it is hidden",
    "03.row.hidden.2": "the {hidden} tokens after it are hidden",
    "03.row.open.0": "no token stands after it",
    "03.row.open.1": (
        "without the mask, {ahead:.0%} goes to the token after it, which is not written yet when this one is read"
    ),
    "03.row.open.2": (
        "without the mask, {ahead:.0%} goes to the {hidden} tokens after it, which are not written yet when "
        "this one is read"
    ),
    "03.layer.attention": "attention",
    "03.layer.mlp": "MLP",
    "03.layer.norm": "RMSNorm",
    "03.layer.q": "Q",
    "03.layer.k": "K",
    "03.layer.v": "V",
    "03.layer.rope": "RoPE",
    "03.layer.softmax": "Q·K, mask,\nsoftmax",
    "03.layer.mix": "shares × V",
    "03.layer.out": "project",
    "03.layer.gate": "silu(gate) × up",
    "03.layer.down": "down",
    "03.layer.residual": "the residual stream: each part only adds to it",
    "03.layer.title": "Only scores and shares join different tokens; every other box works on each token alone",
    "03.layer.sentence": (
        "A layer takes [{length}, {hidden}], adds what attention found ({heads} query heads on {kv_heads} KV "
        "heads), adds what the MLP made of it, and gives back [{length}, {hidden}]."
    ),
    "03.exp.model": "largest score",
    "03.exp.axis": "score s (float16, float32: the largest s whose exp(s) is a finite number)",
    "03.exp.title": "A real score of {largest:.1f} is past the end of float16's exponentials",
    "03.exp.sentence": (
        "exp(s) stays finite up to s = {half:.1f} in float16 and {single:.1f} in float32; the largest score "
        "in this model on this sentence is {largest:.1f}."
    ),
    "03.mask.keys": "key",
    "03.mask.queries": "query",
    "03.mask.part": "{name}: the rows see {rows} keys",
    "03.mask.sentence": "{parts}.",
    "03.groups.grouped": "grouped: head h reads KV head h // {group}",
    "03.groups.tiled": "tiled (wrong here): head h reads h % {kv_heads}",
    "03.groups.title": "Neighbours share a KV head; tiling gives {same} of {heads} heads the right one",
    "03.groups.sentence": (
        "{heads} query heads share {kv_heads} KV heads in groups of {group} neighbours; tiling would send "
        "only {same} of them to the right one, with the same shapes and no error."
    ),
    "03.rope.clock": "query at {q_at}, key at {k_at}\ndistance {distance}, score {score:.2f}",
    "03.rope.title": "Both hands turn; the angle between them stays",
    "03.rope.sentence": (
        "At positions {positions} (query, key) the distances are {distances} and the whole scores are {scores}."
    ),
    "03.survey.first": "share given to the first token (darker: more): above half in {over} of {total} heads",
    "03.survey.previous": "share given to the token before (darker: more): above half in {over} of {total} heads",
    "03.survey.head": "head",
    "03.survey.layer": "layer",
    "03.survey.title": "Most heads rest on the first token; {previous} of {total} look one step back",
    "03.survey.sentence": (
        "Of {total} heads, {first} give the first token a share above one half (mean over all heads "
        "{mean:.0%}), and {previous} give more than half to the token just before."
    ),
    "03.work.part": "{length} tokens: {total} scores",
    "03.work.newest": "dark: the row of the newest token",
    "03.work.title": "{times:.0f} times the tokens, {ratio:.1f} times the scores",
    "03.work.sentence": (
        "Each new token adds one row as long as the text so far: {few} scores for {length} tokens, {many} for "
        "{other}, {ratio:.1f} times as many for {times:.0f} times the length."
    ),
    # 04 naive KV cache
    "04.pass.without": "Without a cache: {rows} tokens go through",
    "04.pass.with": "With a cache: only {rows}",
    "04.pass.now": "computed for the first time",
    "04.pass.again": "computed once more",
    "04.pass.read": "read from the cache",
    "04.pass.old": "not needed any more",
    "04.pass.kept": "read from the cache",
    "04.pass.gone": "old rows: done,\nno Q needed",
    "04.pass.sentence": (
        "Of {n} tokens, {new} new: without a cache {n} rows go through every layer, {again} of them once more, and "
        "{cells} scores are computed; with a cache {new} and {few}, and the K and V of {held} tokens are read."
    ),
    "04.rows.before": "{n} tokens",
    "04.rows.after": "{n} tokens: the old rows again, one new",
    "04.rows.keys": "keys (darker: a larger share)",
    "04.rows.queries": "queries",
    "04.rows.same": "came out the same",
    "04.rows.differ": "changed",
    "04.rows.sentence": (
        "Attention of {where}: when one more token is fed, the first {n} rows {same} and one row is new."
    ),
    "04.cost.title": "At {n} tokens a step without a cache costs {ratio:.0f} times as much",
    "04.cost.without": "without a cache",
    "04.cost.with": "with a cache",
    "04.cost.x": "tokens so far",
    "04.cost.sentence": "At {n} tokens, a step without a cache costs {ratio:.0f} times a step with one.",
    "04.caches.left": "Concatenation copied {ratio:.0f} times what it holds",
    "04.caches.right": "{share:.0%} of the reserved slots stay empty",
    "04.caches.copied": "copied so far",
    "04.caches.held": "held",
    "04.caches.x": "tokens in the cache",
    "04.caches.slots": "slots",
    "04.caches.concat": "grown by concatenation",
    "04.caches.preallocated": "preallocated",
    "04.caches.sentence": (
        "With {tokens} tokens, concatenation holds {held:.1f} MiB and has copied {copied:.1f} MiB on the way; "
        "preallocation copied nothing and keeps {wasted} of {max_len} slots empty."
    ),
    "04.mask.wrong": "Wrong: square, aligned top-left",
    "04.mask.right": "Right: aligned bottom-right",
    "04.mask.held": "{n} in the cache",
    "04.mask.new": "{n} new",
    "04.mask.sentence": (
        "{new} new tokens behind {held} in the cache: the first new one may see {first} keys; "
        "a square mask hides {lost} pairs that belong to them."
    ),
    "04.batch.title": "{rows} times the rows, {ratio:.1f} times the time",
    "04.batch.x": "rows in the step (one new token of each sequence)",
    "04.batch.y": "time of a step (1 row = 1)",
    "04.batch.measured": "measured: one pass for all rows",
    "04.batch.one_by_one": "one pass for each row",
    "04.batch.sentence": (
        "A step with {rows} rows takes {ratio:.1f} times as long as one with {first}; "
        "one by one it would be {rows} times."
    ),
    "04.roof.title": "{name}, {about}: the weights are {bound}",
    "04.roof.ridge": "ridge: {ridge:.0f}",
    "04.roof.memory": "memory-bound",
    "04.roof.compute": "compute-bound",
    "04.roof.linear": "weights: {intensity:,.0f}",
    "04.roof.attention": "attention over the cache: {intensity:.3g}",
    "04.roof.said.linear": (
        "the weights are {bound}, at {intensity:,.0f} FLOPs per byte, and need {ms:.3g} ms at least;"
    ),
    "04.roof.said.attention": "attention is {bound}, at {intensity:.3g}, and needs {ms:.3g} ms at least.",
    "04.roof.tflops": "{n:,g}",
    "04.roof.x": "FLOPs per byte read from memory (logarithmic)",
    "04.roof.y": "TFLOP/s within reach (logarithmic)",
    "04.roof.sentence": "{name}, {about}: {said}",
    "04.step.title": "{gpu}, batch {batch}: the weights are {bound}",
    "04.step.flops": "without a cache: {total:,.1f} GFLOP",
    "04.step.flops.first": "new: {n:,.1f}",
    "04.step.flops.second": "computed once more: {share:.1%}",
    "04.step.bytes": "with a cache: {total:,.2f} GiB read",
    "04.step.bytes.first": "weights: {n:,.2f}",
    "04.step.bytes.second": "K and V: {n:,.2f}",
    "04.step.time": "with a cache: {total:,.2f} ms at least",
    "04.step.time.first": "weights: {n:,.2f}",
    "04.step.time.second": "attention: {n:,.2f}",
    "04.step.sentence": (
        "{model} on {gpu}, batch {batch}, {held} tokens in each sequence: a step with a cache computes {gflop:,.1f} "
        "GFLOP and reads {gib:,.2f} GiB, {kv:.0%} of it K and V, in {ms:,.2f} ms at least; without a cache {share:.1%} "
        "of the work would be recomputation. Weights: {linear}. Attention: {attention}."
    ),
    # 05 KV cache size
    "05.part.weights": "weights {size}",
    "05.part.reserve": "activations, reserve {size}",
    "05.part.unused": "left alone {size}",
    "05.part.kv": "K and V {size}",
    "05.part.free": "free {size}",
    "05.part.missing": "of all this, beyond the edge {size}",
    "05.gpu.axis": "GiB of one {gpu} (the black line is its {memory} GiB)",
    "05.gpu.title.fits": "{batch} × {length:,} tokens fit, and {free} stay free",
    "05.gpu.title.missing": "{batch} × {length:,} tokens do not fit: {missing} are missing",
    "05.gpu.no.limit": "not limited by memory",
    "05.gpu.sentence": (
        "{model} on {gpu}: {per_token} bytes per token; {batch} × {length} tokens need {kv} for K and V beside "
        "{weights} of weights, {ratio} : 1; largest batch at this length: {largest}."
    ),
    "05.gpu.fits": "It fits, and {free} stay free.",
    "05.gpu.missing": "It does not fit: {missing} are missing. {advice}",
    "05.ratio.axis": "GiB (the black line is the {card})",
    "05.ratio.title": "The {card} ends at {best} : 1; {highest} : 1 needs another machine",
    "05.ratio.weights": "weights",
    "05.ratio.kv": "K and V",
    "05.ratio.row": "{name}: {ratio} : 1, {total} in all, {where}",
    "05.ratio.on": "fits",
    "05.ratio.off": "does not fit",
    "05.ratio.sentence": "K and V against weights: {rows}.",
    "05.heads.kept": "{numbers:,} numbers, {share}%",
    "05.heads.title": (
        "{query_heads} query heads, one token: {most:,} numbers are kept, or only {least:,} (drawn to scale)"
    ),
    "05.heads.row": "{name} keeps K and V of {kv_heads} KV heads, {numbers:,} numbers",
    "05.heads.row.one": "{name} keeps K and V of one KV head, {numbers:,} numbers",
    "05.heads.latent": "{name} keeps one latent of {numbers:,} numbers",
    "05.heads.sentence": "For one token in one layer with {query_heads} query heads: {named}.",
    "05.kept.layer": "layer {layer}: {what}",
    "05.kept.full": "every token",
    "05.kept.sliding": "the last {window}",
    "05.kept.chunked": "a chunk of {window}",
    "05.kept.shared": "reads layer {source}",
    "05.kept.none": "a state, no tokens",
    "05.kept.first": "token 0",
    "05.kept.last": "token {last}",
    "05.kept.title": "After {length} tokens, {held} of {every} K and V pairs are held",
    "05.kept.sentence": "After {length} tokens the layers hold {held} of {every} K and V pairs.",
    "05.growth.x": "tokens in one sequence",
    "05.growth.title": "{most} needs {size} for one sequence of {longest:,} tokens",
    "05.growth.sentence": "One sequence of {longest:,} tokens needs: {rows}.",
    # 06 fragmentation
    "06.step": "step",
    "06.slot": "slot",
    "06.nobody": "nobody",
    "06.join": "; ",
    "06.batches.static": "Static: the batch ends with its longest request, {steps} steps, {idle} of {all} empty",
    "06.batches.continuous": "Continuous: a free place is filled immediately, {steps} steps, {idle} of {all} empty",
    "06.batches.place": "place {n}",
    "06.batches.sentence": (
        "Static batching takes {static} steps and leaves {static_idle} of {static_all} places empty, counting each "
        "place once a step; continuous batching takes {continuous} and leaves {continuous_idle} of {continuous_all}."
    ),
    "06.reservation.title": "{taken} slots are gone for others, {written} hold a token",
    "06.reservation.0": "prompt\n{n}",
    "06.reservation.1": "output so far\n{n}",
    "06.reservation.2": "reserved\n{n}",
    "06.reservation.3": "internal\n{n}",
    "06.reservation.4": "external\n(rounding) {n}",
    "06.reservation.sentence": (
        "Of {taken} slots, {prompt} hold the prompt and {output} the output so far; {reserved} are reserved, "
        "{internal} are internal waste and {external} are external (rounding)."
    ),
    "06.pool.now": "Step {step}: running {running}; waiting {waiting}",
    "06.pool.sentence": (
        "Step {step}, {slots} slots: {tokens} hold tokens, {reserved} are reserved, {internal} internal, "
        "{external} external, {idle} idle"
    ),
    "06.pool.waits": "; {first} waits beside {free} free slots, {hole} of them in one piece.",
    "06.pool.idle": "; nobody waits.",
    "06.legend.used": "written",
    "06.legend.reserved": "reserved",
    "06.legend.wasted": "internal: never used",
    "06.legend.rounding": "external: rounding",
    "06.legend.free": "free",
    "06.time.title": "Memory by time: below each slope it holds tokens, above it is kept",
    "06.time.sentence": (
        "{n} requests pass through {slots} slots in {steps} steps; below each slope slots hold tokens, above "
        "it they are kept and empty."
    ),
    "06.refused.hole": "{n} free",
    "06.refused.title": "Step {step}: {name} needs {needed} slots, {free} are free, and it waits",
    "06.refused.sentence": (
        "At step {step} request {name} needs {needed} slots in one piece; {free} are free, and the longest "
        "hole has {hole}."
    ),
    "06.bars.ours": "ours",
    "06.bars.paper": "paper",
    "06.bars.percent": "% of the pool's slots",
    "06.bars.title": "Even {best}, which knows the lengths, fills only {tokens:.0f}%",
    "06.bars.sentence": (
        "Slots that hold tokens, in per cent, ours against the paper's: {each}; the largest difference in "
        "any part is {furthest:.1f} points."
    ),
    "06.bars.each": "{name} {ours:.1f} against {paper:.1f}",
    "06.part.tokens": "tokens",
    "06.part.reserved": "reserved",
    "06.part.internal": "internal",
    "06.part.external": "external, other",
    "06.part.idle": "idle",
    "06.batched.axis": "requests running at once, mean",
    "06.batched.title": "{last} runs {high:.1f} at once, {first} {low:.1f}: {ratio:.1f} times as many",
    "06.batched.sentence": (
        "In the same memory {first} runs {low:.1f} requests at once and {last} {high:.1f}, {ratio:.1f} times as many."
    ),
    "06.whatif.row": "{name}\n{n:.1f} at once",
    "06.whatif.each": "{name} {tokens:.0f}% with {n:.1f} running",
    "06.whatif.title": "Slots with tokens: from {low:.0f}% ({least}) to {high:.0f}% ({most})",
    "06.whatif.sentence": "Slots that hold tokens: {each}.",
    "06.whatif.refused": " Up to {n} requests were refused, because they can never fit.",
    "06.padding.top": "Padded: {rows} rows of {longest}, {empty} of {cells} places hold nothing",
    "06.padding.low": "Packed: {total} places, none empty",
    "06.padding.sentence": (
        "The padded batch has {cells} places, {empty} of them empty; packed, the same tokens need {total}."
    ),
    # 07 paged KV cache
    "07.two.title": "One idea, two memories: the table says where each piece really lies",
    "07.two.os": "Operating system",
    "07.two.os.sees": "a process:\npages of bytes",
    "07.two.os.table": "page\ntable",
    "07.two.os.lies": "memory:\nframes",
    "07.two.kv": "Paged KV cache",
    "07.two.kv.sees": "a request:\nblocks of tokens",
    "07.two.kv.table": "block\ntable",
    "07.two.kv.lies": "the pool:\nphysical blocks",
    "07.two.sentence": (
        "On both sides the owner sees {n} pieces in a row, and the table {table} says in which pieces of the real "
        "memory they lie, in any order; only the last piece is part empty."
    ),
    "07.reserved.title": "The same {tokens} tokens: {max:,} empty slots, or {paged}",
    "07.reserved.max": "reserved for the longest request: {n:,} slots, {empty:,} empty",
    "07.reserved.blocks": "blocks of {size}: {blocks} block, {n} slots, {empty} empty",
    "07.reserved.zoom": "the block, enlarged",
    "07.reserved.sentence": (
        "{tokens} tokens leave {max:,} of {reserved:,} reserved slots empty; in blocks they hold {held} slots, and "
        "{paged} of these are empty."
    ),
    "07.count.sequence.one": "{n} sequence",
    "07.count.sequence.many": "{n} sequences",
    "07.count.token.one": "{n} token",
    "07.count.token.many": "{n} tokens",
    "07.count.block.one": "{n} block",
    "07.count.block.many": "{n} blocks",
    "07.count.empty.one": "{n} empty slot",
    "07.count.empty.many": "{n} empty slots",
    "07.poured.title": "{tokens} in {blocks} of {size}, {empty}",
    "07.poured.pool": "the pool: {n} blocks",
    "07.poured.table": "block table",
    "07.poured.sentence": (
        "The sequence has {tokens} in {blocks} of {size}, block table {table}; its last block has {empty}, and {free} "
        "of the pool's {pool} blocks are free."
    ),
    "07.poured.lit": (
        " Position {position} is in logical block {row} at offset {offset}: physical block {block}, slot {slot}."
    ),
    "07.pool.title": "{n}: {held} of {pool} blocks in use, {empty} of their slots empty",
    "07.pool.used": "a token's K and V",
    "07.pool.reserved": "empty slot of a last block",
    "07.pool.free": "free block",
    "07.pool.sentence": (
        "{n}, {tokens} tokens in all: {held} of {pool} blocks in use, {empty} empty slots in their last blocks, {free} "
        "free blocks for anybody."
    ),
    "07.layer.title": "{tokens} tokens of one sequence, far apart in one layer's pool of {mib:.1f} MiB",
    "07.layer.block": "block {block}: tokens {first} to {last}",
    "07.layer.sentence": (
        "One layer's pool of {n} blocks is {mib:.1f} MiB; the table {table} finds the sequence's {tokens} tokens in it."
    ),
    "07.bars.title": "Paging fills {paged:.1f}% of the slots, {best}, the paper's best reservation, {tokens:.1f}%",
    "07.bars.each": "{name} {ours:.1f} against {paper:.1f}",
    "07.bars.sentence": "Slots that hold a token, in per cent, ours against the paper's: {each}.",
    "07.sizes.title": "Small blocks waste little, large blocks need short tables; {chosen} keeps {at:.1f}%",
    "07.sizes.percent": "slots that hold a token, % of the pool",
    "07.sizes.entries": "block table entries of a request",
    "07.sizes.axis": "block size, in tokens (logarithmic)",
    "07.sizes.sentence": (
        "From blocks of {first} to blocks of {last} the share of slots that hold a token falls from {high:.1f} to "
        "{low:.1f}%; blocks of {chosen} keep {at:.1f}% with {entries:.1f} table entries a request, where blocks of "
        "{first} need {most:.0f}."
    ),
    "07.empty.title": "A last block has {mean:.2f} empty slots on average; 0 to {most} are equally likely",
    "07.empty.axis": "empty slots in the last block",
    "07.empty.percent": "% of all moments",
    "07.empty.sentence": (
        "Over all moments of all requests the last block of {size} slots has {mean:.2f} empty ones on average; "
        "(B - 1) / 2 = {half}."
    ),
    "07.expected.title": "{tokens} tokens on average, blocks of {size}: {percent:.1f}% of the slots used",
    "07.expected.axis": "slots used, %",
    "07.expected.sentence": (
        "Requests of 1 to {most} tokens, {tokens} on average, in blocks of {size}: {empty:.1f} empty slots and "
        "{entries:.1f} table entries a request, on average; {percent:.1f}% of the slots are used."
    ),
    # 08 paged attention
    "08.parts.title": "Two partial softmaxes merge: part {name} times {shrink:.2f}, then both have one scale",
    "08.parts.part": "part {name}\nmaximum {top:g}, sum {sum:.2f}",
    "08.parts.merged": "merged\nmaximum {top:g}, sum {sum:.2f}",
    "08.parts.shrink": "{name} × exp({low:g} - {top:g}) = {name} × {factor:.2f}",
    "08.parts.axis": "exp(score - maximum)",
    "08.parts.scores": "scores",
    "08.parts.sentence": (
        "Part A has maximum {a:g} and sum {sa:.2f}, part B has maximum {b:g} and sum {sb:.2f}. Merged, the maximum is "
        "{top:g}: every weight of part {name} is multiplied by {shrink:.2f}, and the sum is {total:.2f}."
    ),
    "08.step.title.none": "Nothing is read yet: {of} blocks to go",
    "08.step.title.some": "{step} of {of} blocks read: maximum {top:.2f}, sum {total:.2f}",
    "08.step.max": "maximum {top:.2f}",
    "08.step.block": "block",
    "08.step.scores": "score",
    "08.step.weights": "exp(score - max)",
    "08.step.output": "output, first {n} numbers\n(dashed: the final ones)",
    "08.step.nothing": "Before the first of {of} blocks the maximum is -inf, the sum 0 and the output nothing.",
    "08.step.sentence": (
        "After {step} of {of} blocks (now physical block {block}, tokens {first} to {last}) the maximum is {top:.2f} "
        "and the sum {total:.3f}."
    ),
    "08.step.raised": (
        " This block raised the maximum from {before:.2f}, so the older sum and output shrank to {shrink:.3f} of "
        "themselves."
    ),
    "08.step.forgot": (
        " This block raised the maximum from {before:.2f}, and the older sum and output did not shrink: they weigh "
        "too much now."
    ),
    "08.step.kept": " The maximum stayed, so nothing old had to change.",
    "08.step.far": " The output is off by {off:.2%} of its largest number.",
    "08.step.same": " The output is that of all scores at once.",
    "08.row.title": "{n} sequences in one row of {total} tokens: no padding, and a slot for each",
    "08.row.sequence": "{name}: {q} new of {n}",
    "08.row.cu": "cu_seqlens_q",
    "08.row.ids": "input_ids",
    "08.row.positions": "positions",
    "08.row.slots": "slot_mapping",
    "08.row.used": "stored before",
    "08.row.copy": "written by this step",
    "08.row.reserved": "empty slot",
    "08.row.free": "free",
    "08.row.sentence": (
        "{n} sequences with {lens} tokens bring {total} new ones; cu_seqlens_q is {cu}, and their K and V go to the "
        "slots {slots}."
    ),
    "08.sees.title": "A packed step needs {needed} of {all} scores: each row sees its own sequence, up to itself",
    "08.sees.keys": "keys of {name}: {n}",
    "08.sees.rows": "packed query rows",
    "08.sees.sentence": (
        "{total} query rows of {n} sequences: {needed} of {all} pairs of a query and a key are needed; a row sees the "
        "keys of its own sequence up to its own position and nothing else."
    ),
    "08.pad.title": "Padded: {padded} tokens computed, {wasted} of them for nothing; packed: {packed}",
    "08.pad.prompts": "prompts, padded to the longest",
    "08.pad.outputs": "tokens written, until the last request is done",
    "08.pad.packed": "packed: the same work, {n} tokens",
    "08.pad.used": "a token that is needed",
    "08.pad.wasted": "padding",
    "08.pad.sentence": (
        "{n} requests as a rectangle {width} wide: {padded} tokens are computed, {wasted} of them padding; packed, "
        "{packed} are."
    ),
    "08.steps.title": "{first} tokens in the first step, then one or a chunk a sequence; every step is packed",
    "08.steps.tokens": "tokens computed",
    "08.steps.blocks": "blocks in use",
    "08.steps.axis": "step",
    "08.steps.sentence": (
        "{n} steps compute {total} tokens, {first} of them in the first step; at most {most} of {pool} blocks are in "
        "use, and {end} in the last step."
    ),
    "08.moved.title": "Gathering first moves {times:.0f} times the bytes, and needs room for a second copy",
    "08.moved.gather": "gather,\nthen attend",
    "08.moved.walk": "walk the\ntable",
    "08.moved.read": "read the blocks",
    "08.moved.write": "write the copy",
    "08.moved.reread": "read the copy",
    "08.moved.axis": "MiB moved in one layer of one step",
    "08.moved.extra": "room needed beside the pool",
    "08.moved.sentence": (
        "In one layer of one step, gathering moves {all:,.0f} MiB and needs {gather:,.0f} MiB beside the pool; walking "
        "the table moves {once:,.0f} MiB and needs {walk:,.0f} KiB: {times:.0f} times less moved."
    ),
    # 09 Triton kernel
    "09.levels.axis": "bytes (logarithmic)",
    "09.levels.title": "{chip}: {far} holds {times:,.0f} times as much as all {near} together",
    "09.levels.sentence": (
        "On an {chip}, {far} holds {times:,.0f} times as many bytes as all {near} together; the three memories on the "
        "chip hold tens of MiB each, the HBM tens of GiB."
    ),
    "09.floors.moving": "read K and V once",
    "09.floors.computing": "compute with them",
    "09.floors.value": "{us:.1f} µs",
    "09.floors.axis": "least possible time, microseconds",
    "09.floors.title": "Reading takes {times:.0f} times as long as computing: memory-bound",
    "09.floors.sentence": (
        "On an {chip}, reading K and V once takes at least {us:.1f} microseconds and the arithmetic at least "
        "{work:.1f}: {times:.0f} times less."
    ),
    "09.grid.programs": "the launch grid",
    "09.grid.tables": "block tables",
    "09.grid.pool": "the pool: {n} blocks of {size} slots",
    "09.grid.head": "head {n}",
    "09.grid.title": "{seqs} sequences × {heads} KV heads = {n} programs",
    "09.grid.sentence": (
        "{n} programs, one for each of {seqs} sequences and {heads} KV heads; a slot of the pool has one cell for each "
        "KV head."
    ),
    "09.grid.one.title": "Program ({seq}, {head}) reads {reads} keys: those of sequence {name}, KV head {head}",
    "09.grid.one.sentence": (
        "Program ({seq}, {head}) of {n} follows the block table {table} of sequence {name} and reads {reads} keys of "
        "KV head {head}, and no others."
    ),
    "09.splits.line": "{n} multiprocessors",
    "09.splits.axis": "parts that the length is cut into",
    "09.splits.programs": "programs",
    "09.splits.title": "{first} part: {programs} programs for {processors} multiprocessors; {enough} parts: {then}",
    "09.splits.sentence": (
        "Without splitting, {programs} programs leave most of the {processors} multiprocessors idle; {enough} parts "
        "make {then} programs."
    ),
    # 10 continuous batching
    "10.step": "step",
    "10.time": "time, {unit}",
    "10.time.log": "time, {unit} (logarithmic)",
    "10.state.waiting": "waiting",
    "10.state.prefill": "prefill",
    "10.state.decode": "decode",
    "10.state.idle": "no budget",
    "10.state.away": "gave way",
    "10.state.swapped": "swapped out",
    "10.lines.blocks": "blocks",
    "10.lines.title": "{n} requests in {blocks} blocks: {steps} steps, {gone} times somebody gave way",
    "10.lines.sentence": (
        "{n} requests share {blocks} blocks. All are done after {steps} steps; {running:.1f} run at a time on average, "
        "{share:.0%} of the blocks are in use, and {gone} times a request gave way. {slowest} took the longest."
    ),
    "10.ablation.title": "Continuous batching, then paging: {steps} steps",
    "10.ablation.1": "steps (fewer is better)",
    "10.ablation.2": "requests running, mean",
    "10.ablation.3": "slots that hold a token, %",
    "10.ablation.each": "{name} takes {steps} steps, runs {running:.1f} requests at a time and fills {used:.0%}",
    "10.ablation.sentence": "The same requests, tokens and slots: {each} of the slots.",
    "10.load.title": "At {high:g} requests per {unit} the first token takes {times:.0f} times as long as at {low:g}",
    "10.load.p0": "median",
    "10.load.p1": "90th percentile",
    "10.load.p2": "99th percentile",
    "10.load.rate": "requests per {unit}",
    "10.load.first": "time to first token, {unit} (logarithmic)",
    "10.load.gap": "time between tokens, {unit} (logarithmic)",
    "10.load.sentence": (
        "From {low:g} to {high:g} requests per {unit} the median time to the first token goes from {f0:.2f} to "
        "{f1:.2f} {unit}, its 99th percentile from {p0:.2f} to {p1:.2f}, and the median time between tokens from "
        "{g0:.3f} to {g1:.3f}."
    ),
    "10.slower.alone": "alone",
    "10.slower.together": "with the others",
    "10.slower.gone": "gave way",
    "10.slower.axis": "steps from start to end",
    "10.slower.title": "{worst} loses most by not being alone: {times:.1f} times its time alone",
    "10.slower.sentence": (
        "With the others a request takes {least:.1f} to {times:.1f} times as long as alone; {worst} loses most; {n} of "
        "them gave way."
    ),
    "10.cost.swap": "swap out and in",
    "10.cost.recompute": "recompute",
    "10.cost.axis": "block size, in tokens (logarithmic)",
    "10.cost.title": "Small blocks make swapping slow; recomputing does not see blocks",
    "10.cost.sentence": (
        "For a sequence of {tokens} tokens, swapping out and in costs {high:.0f} ms with blocks of {first} and "
        "{low:.0f} ms with blocks of {last}; recomputing costs {recompute:.0f} ms with any. From blocks of {cross} on, "
        "swapping is the cheaper one."
    ),
    "10.chunk.first": "the long prompt's first token",
    "10.chunk.gap": "the longest gap of the others",
    "10.chunk.axis": "max_num_batched_tokens (logarithmic)",
    "10.chunk.title": "A larger budget: the long prompt starts sooner, the others wait longer",
    "10.chunk.sentence": (
        "With a budget of {small} tokens the long prompt has its first token after {f0:,.0f} {unit} and nobody else "
        "waits longer than {g0:,.0f}; with {large} it takes {f1:,.0f} and the others wait {g1:,.0f}."
    ),
    "10.gauges.queues": "requests",
    "10.gauges.running": "running",
    "10.gauges.waiting": "waiting",
    "10.gauges.blocks": "blocks in use, %",
    "10.gauges.gone": "gave way, in all",
    "10.gauges.tokens": "tokens a step",
    "10.gauges.title": "{name}",
    "10.gauges.sentence": (
        "{name}: at most {running} run and {waiting} wait; at most {blocks:.0%} of the blocks are in use; {gone} times "
        "a request gave way; a step has up to {tokens:,} tokens and takes up to {slowest:.2f} {unit}."
    ),
    # 11 sharing
    "11.pool.title.1": "1 sequence: {blocks} blocks in use, none of them shared",
    "11.pool.title": "{n} sequences: {blocks} blocks in use instead of {alone}; {shared} of them shared",
    "11.pool.own": "one owner",
    "11.pool.shared": "shared, with its count",
    "11.pool.reserved": "empty slot of a last block",
    "11.pool.free": "free block",
    "11.pool.copied": "copied in this step",
    "11.pool.sentence.1": (
        "1 sequence names {alone} blocks in its table; {blocks} blocks of {pool} are in use, {shared} of them shared. "
        "Copies made: {copies}."
    ),
    "11.pool.sentence": (
        "{n} sequences name {alone} blocks in their tables; {blocks} blocks of {pool} are in use, {shared} of them "
        "shared: {percent:.0f}% less than without sharing. Copies made: {copies}."
    ),
    "11.moments.title": "{n} samples end with {blocks} blocks instead of {alone}; blocks copied: {copies}",
    "11.moments.table": "{name}: {table}",
    "11.moments.count": "count {n}",
    "11.moments.copy": "copy",
    "11.moments.each": "{label}: {tables}",
    "11.moments.copied": ", block {source} copied to block {target}",
    "11.moments.sentence": "The tables, moment by moment. {each}",
    "11.tree.title": "{n} beams, {blocks} blocks instead of {alone}; darker: more beams name it",
    "11.tree.block": "{block}  ×{count}",
    "11.tree.gone": "{block}  given back",
    "11.tree.sentence": (
        "{n} beams name {alone} blocks in their tables, and {blocks} are in use, {percent:.0f}% less. Shared: "
        "{shared}, one of them by {most} beams. Given back since the moment before: {gone}."
    ),
    "11.saved.paper": "paper, figure 15",
    "11.saved.ours": "here, whole blocks",
    "11.saved.tokens": "counting tokens, from the means",
    "11.saved.drawn": "here, beams drawn at random",
    "11.saved.sampling": "n samples of one prompt",
    "11.saved.sampling.title": "samples: {low:.0f} to {high:.0f}% saved",
    "11.saved.sampling.tick": "n = {n}",
    "11.saved.beams": "beam search",
    "11.saved.beams.title": "beams: {low:.0f} to {high:.0f}% saved",
    "11.saved.beams.tick": "k = {n}",
    "11.saved.axis": "memory saved, %",
    "11.saved.each": "{what}, {name}: {values}",
    "11.saved.sentence": "Memory saved in per cent, for {counts}. {each}.",
    "11.prefill.found": "found in the pool",
    "11.prefill.computed": "computed",
    "11.prefill.axis": "prompt tokens",
    "11.prefill.who": "request, in order of arrival",
    "11.prefill.title": "{percent:.0f}% of the prompt tokens need no computing",
    "11.prefill.sentence": (
        "{n} requests have {total:,} prompt tokens; {found:,} of them ({percent:.0f}%) were found in the pool and "
        "{computed:,} were computed."
    ),
    "11.next.title": (
        "Prefix caching: {steps_from} → {steps} steps, {tokens_from:,} → {tokens:,} tokens, "
        "{running_from:.1f} → {running:.1f} requests at once"
    ),
    "11.next.1": "steps",
    "11.next.2": "tokens computed",
    "11.next.3": "requests running, mean",
    "11.next.each": "{name}: {steps} steps, {tokens:,} tokens computed, {running:.1f} requests running",
    "11.next.sentence": "The same requests and the same tokens, one idea more in each row. {each}.",
    "11.kept.title": "A block that nobody uses keeps its content until its turn comes to be handed out",
    "11.kept.queue": "next to go: {queue}",
    "11.kept.part": "{n} of {size} slots",
    "11.kept.found": "found",
    "11.kept.computed": "computed",
    "11.kept.again": "; found {found}, computed {computed}",
    "11.kept.none": "nothing",
    "11.kept.each": "{label}: {used} blocks in use{again}, kept {kept}; the queue of free blocks is {queue}.",
    # 13 from minipaged to vLLM
    "13.map.ours": "minipaged (chapter, module, symbol)",
    "13.map.theirs": "vLLM {version} (symbol, file below vllm/)",
    "13.map.title": "{n} parts:  =  the same idea ({same})   ≈  changed ({changed})   ≠  another way ({other})",
    "13.map.sentence": (
        "The map: of {n} parts of minipaged, {same} follow the same idea in vLLM {version}, {changed} are changed, and "
        "{other} are done in another way."
    ),
    "13.map.one": "{ours} (chapter {chapter}) is {symbol} in {path}.",
    "13.part.front": "The same call with the same results; the engine behind it runs in a process of its own.",
    "13.part.step": (
        "One turn of the loop: schedule, execute, update. It can also prepare a step while another one runs."
    ),
    "13.where.title.same": "{name}: the same idea in vLLM {version}",
    "13.where.title.changed": "{name}: changed in vLLM {version}",
    "13.where.title.other": "{name}: done in another way in vLLM {version}",
    "13.part.request": "Token ids, a status, num_computed_tokens; it also carries the hashes of its full blocks.",
    "13.part.schedule": (
        "Running requests first, then waiting ones, under a budget of tokens; it knows no prefill and no decode, only "
        "tokens that are not computed yet."
    ),
    "13.part.preempt": (
        "Recompute only: blocks are freed, num_computed_tokens becomes 0, and the request waits in front."
    ),
    "13.part.prefix": "Hashes of full blocks, chained; a hit leaves at least one token to compute.",
    "13.part.allocate": (
        "One call admits and grows; behind it stands a manager for each kind of attention. The watermark is 0 unless "
        "you set one."
    ),
    "13.part.pool": (
        "Free blocks in a linked list; a freed block keeps its hash and can be hit. Block 0 is never dealt out."
    ),
    "13.part.fork": (
        "No fork: n samples are n requests that meet in the prefix cache. A shared block is full, and a full block is "
        "never written again, so nothing is copied."
    ),
    "13.part.beam": "Above the engine: each beam is a new request of one token that hits the prefix cache.",
    "13.part.slots": "The same formula in a Triton kernel, for all tokens of the step at once; -1 pads.",
    "13.part.runner": (
        "vLLM's own model code instead of transformers' modules, buffers that stay in place, CUDA graphs."
    ),
    "13.part.write": "A kernel puts each new K and V at slot // block_size and slot % block_size.",
    "13.part.kernel": (
        "Prefill and decode in one kernel, an online softmax over the block table, the length split when programs are "
        "few. On many GPUs a FlashAttention or FlashInfer kernel does this work."
    ),
    "13.part.sample": "Temperature, min-p, top-k, top-p, then chapter 1's race (Gumbel noise), for all rows at once.",
    "13.part.draft": (
        "Accept with min(1, p/q), else draw from what is left of p over q. Slots of rejected drafts are written "
        "again; no block is given back."
    ),
    "13.part.size": "Bytes of a page for each kind of layer, on one GPU; the planner makes groups of layers from it.",
    "13.csr.rectangle": "block_tables",
    "13.csr.title": "A rectangle of {padded} entries, or {pages} page numbers in a row",
    "13.csr.sentence": (
        "{n} block tables fill {padded} places when padded with -1. As CSR: indices {indices}, indptr {indptr}, "
        "last_page_len {last} of {size}."
    ),
    "13.ledger.caption": "The claims ledger, rows: {n}",
    "13.ledger.number": "No.",
    "13.ledger.claim": "claim",
    "13.ledger.chapter": "chapter",
    "13.ledger.check": "check",
    "13.ledger.result": "what came out",
    "13.ledger.verdict": "verdict",
    "13.verdicts.chapter": "ch. {n}",
    "13.verdicts.title": "{n} claims: ✓ {holds} hold, (✓) {partly} hold with conditions, ✎ {corrected} are corrected",
    "13.verdicts.sentence": (
        "Of {n} claims {holds} hold as they are said, {partly} hold with conditions, and {corrected} are corrected: "
        "{numbers}."
    ),
    "13.heads.head": "KV head",
    "13.heads.rank": "GPU {n}",
    "13.heads.title": "{heads} KV heads on {ranks} GPUs: {each} on each",
    "13.heads.sentence": (
        "{heads} KV heads on {ranks} GPUs: each GPU keeps {each}; copies of each head: {copies}. The block table "
        "is the same on all."
    ),
    # 12 speculative decoding
    "12.cost.one": "one pass over k tokens",
    "12.cost.steps": "k steps, one after another",
    "12.cost.axis": "k, tokens in the pass (logarithmic)",
    "12.cost.unit": "time, in single steps\n(logarithmic)",
    "12.cost.title": "A pass over {k} tokens takes {ratio:.1f} times as long as over one ({where})",
    "12.cost.sentence": (
        "On this machine ({where}) a pass over {k} tokens takes {ratio:.1f} times as long as a pass over one, and a "
        "pass over {last} tokens {far:.1f} times."
    ),
    "12.crowd.axis": "sequences that share the pass",
    "12.crowd.unit": "times as long",
    "12.crowd.title": "{k} tokens each cost {low:.1f} steps for {few} sequence, {high:.1f} for {many}",
    "12.crowd.sentence": (
        "With {few} sequence, a pass with {k} tokens each takes {low:.1f} times as long as with one token each; with "
        "{many} sequences {high:.1f} times."
    ),
    "12.rounds.row": "pass {n}",
    "12.rounds.place": "guess {n}",
    "12.rounds.kept": "guess, kept",
    "12.rounds.own": "the target's own token",
    "12.rounds.lost": "behind a rejection: thrown away",
    "12.rounds.instead": "\n(not {guess})",
    "12.rounds.title": "{tokens} tokens from {n} passes: {each:.1f} a pass",
    "12.rounds.sentence": (
        "{n} passes write {tokens} tokens, {each:.1f} a pass: {kept} of {drafted} guesses are kept, and each pass adds "
        "one token of the target's own."
    ),
    "12.overlap.shared": "kept: min(p, q)",
    "12.overlap.more": "residual: p - q",
    "12.overlap.less": "rejected: q - p",
    "12.overlap.p": "p, the target",
    "12.overlap.q": "q, the draft",
    "12.overlap.axis": "probability",
    "12.overlap.title": "{kept:.0%} of the guesses are kept; rejected and residual are both {lost:.0%}",
    "12.overlap.sentence": (
        "The blue part, {kept:.1%}, is kept. What q has too much, {lost:.1%}, is rejected, and drawn again from what "
        "is missing up to p; {share:.0%} of that falls on {most}."
    ),
    "12.rollback.before": "before: {n} tokens in the cache; the newest one is chosen and not yet there",
    "12.rollback.pass": "in the pass: the newest token and {n} guesses",
    "12.rollback.after": "after the rollback: {n} tokens stay",
    "12.rollback.newest": "new",
    "12.rollback.text": "token of the text",
    "12.rollback.kept": "kept in this round",
    "12.rollback.lost": "rejected",
    "12.rollback.free": "free slot of a held block",
    "12.rollback.title": "{lost} rejected slots go back: {blocks} blocks in the pass, {left} after it",
    "12.rollback.sentence": (
        "{before} tokens are in the cache before the round. The pass needs {blocks} blocks; {lost} rejected slots are "
        "given back, and {after} tokens in {left} blocks stay. The small numbers are the physical blocks."
    ),
    "12.speedup.plain": "plain decoding",
    "12.speedup.best": "best length",
    "12.speedup.yours": "your setting",
    "12.speedup.axis": "guesses a pass",
    "12.speedup.unit": "times as fast",
    "12.speedup.title": "Best with {best} guesses a pass: {top:.2f} times as fast",
    "12.speedup.never": "This draft never pays",
    "12.speedup.sentence": (
        "With {rate:.0%} of the guesses kept and a guess that costs {cost:.2f} steps, {k} guesses a pass give "
        "{value:.2f} times the speed of plain decoding; the best length is {best}, with {top:.2f} times."
    ),
}


def say(key: str, **values: Any) -> str:
    """The words for `key` with `values` filled in, to be drawn: in English where no font has the glyphs."""
    code = language()
    return singular(words(__package__, WORDS, key, code if drawable(code) else "en").format(**values))


def tell(key: str, **values: Any) -> str:
    """The words for `key` with `values` filled in, to be printed under the picture: this needs no font."""
    return singular(words(__package__, WORDS, key).format(**values))
