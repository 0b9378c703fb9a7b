"""Checks for chapter 10: a sequence that gets lost, a pool for a promise, admission, and who gives way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.block_manager import BlockManager, blocks_needed
from minipaged.exercises._base import Mistake, NotAttempted, _short, attempt, exercise, is_blank, listed, whole
from minipaged.scheduler import Scheduler, Sequence, rehearse

# --- the lost sequence ---------------------------------------------------------------------------------------------


def grow_all(running: list[str], waiting: list[str], held: dict[str, int], wants: set[str], free: int) -> Any:
    """The right answer: (running, waiting, held, free); the newest, the last in `running`, gives way."""
    running, waiting, held = list(running), list(waiting), dict(held)
    for name in list(running):
        while name in running and name in wants and free == 0:
            newest = running.pop()
            free += held.pop(newest)
            waiting.insert(0, newest)
        if name in running and name in wants:
            held[name] += 1
            free -= 1
    return running, waiting, held, free


_GROW_CASES = (
    (["A", "B", "C"], ["D"], {"A": 2, "B": 3, "C": 2}, {"B"}, 0),
    (["A", "B", "C"], [], {"A": 2, "B": 3, "C": 2}, {"A"}, 1),
    (["A", "B"], ["C"], {"A": 2, "B": 1}, {"B"}, 0),
    (["A", "B", "C", "D"], ["E"], {"A": 1, "B": 1, "C": 1, "D": 1}, {"A", "B", "C", "D"}, 0),
    (["A", "B", "C"], [], {"A": 1, "B": 1, "C": 3}, {"A", "B", "C"}, 1),
)


@exercise("whoever cannot grow tries again after the newest gave way, so each sequence is in exactly one place")
def check_10_lost_sequence(answer: Callable[..., Any]) -> None:
    """`answer(running, waiting, held, wants, free)` -> (running, waiting, held, free), after all grew or gave way."""
    for case in _GROW_CASES:
        running, waiting, held, wants, free = case
        total = free + sum(held.values())
        got = attempt(answer, list(running), list(waiting), dict(held), set(wants), free)
        parts = listed(got, "running, waiting, held, free")
        if len(parts) != 4 or not isinstance(parts[2], dict):
            raise Mistake(f"return running, waiting, held, free; not {_short(got)}")
        now, later = (listed(part, "a list of names for running and for waiting") for part in parts[:2])
        blocks, left = {name: whole(count) for name, count in parts[2].items()}, whole(parts[3])
        told = f"running {running}, waiting {waiting}, blocks {held}, {sorted(wants)} want one more, {free} free"
        want = grow_all(*case)
        for name in (*running, *waiting):
            places = now.count(name) + later.count(name)
            if places != 1:
                where = "nowhere: it is lost" if not places else f"in {places} places"
                raise Mistake(f"{told}: afterwards {name} is {where}. Each must be in exactly one of the two lists")
        if left + sum(blocks.values()) != total:
            raise Mistake(f"{told}: {total} blocks before, {left} free + {sum(blocks.values())} held afterwards")
        if left < 0:
            raise Mistake(f"{told}: {left} blocks are free afterwards; somebody grew without a block")
        if now != want[0]:
            raise Mistake(f"{told}: {want[0]} should run, and {now} do; the newest is the last of running")
        if later != want[1]:
            raise Mistake(f"{told}: waiting should be {want[1]}, and is {later}; who gave way comes back first")
        if blocks != want[2]:
            raise Mistake(f"{told}: blocks should be {want[2]}, and are {blocks}")


# --- a pool for a promise ------------------------------------------------------------------------------------------


def pool_for(count: int, prompt: int, output: int, block_size: int, watermark: float) -> int:
    """The right answer, found by trying: the smallest pool in which `count` requests all run at once to their ends."""
    blocks = 1
    while True:
        manager = BlockManager(blocks, block_size, watermark=watermark)
        last = prompt + output - 1  # the last token is chosen and never stored
        fits = count * blocks_needed(last, block_size) <= blocks
        admitted = (count - 1) * blocks_needed(last, block_size) + blocks_needed(prompt, block_size)
        if fits and (count == 1 or admitted + manager.watermark_blocks <= blocks):
            return blocks
        blocks += 1


@exercise("whole blocks for each, the last token needs no slot, and admission must leave the watermark")
def check_10_pool_for_promise(answer: Callable[..., int]) -> None:
    """`answer(count, prompt, output, block_size, watermark)` -> blocks so that nobody ever waits or gives way."""
    cases = [
        (1, 16, 1, 16, 0.0),
        (4, 10, 20, 16, 0.0),
        (3, 30, 3, 16, 0.0),
        (8, 100, 60, 16, 0.01),
        (40, 30, 2, 16, 0.05),
        (5, 131, 125, 16, 0.1),
        (3, 194, 25, 16, 0.2),
    ]
    for count, prompt, output, size, watermark in cases:
        got = whole(attempt(answer, count, prompt, output, size, watermark))
        want = pool_for(count, prompt, output, size, watermark)
        if got == want:
            continue
        told = f"{count} requests of {prompt} + {output} tokens, blocks of {size}, watermark {watermark}: {want} blocks"
        if got == count * (prompt + output - 1) and size > 1:
            raise Mistake(f"{told}, you say {got}. Those are slots; a block has {size} of them")
        if got == count * blocks_needed(prompt + output, size) and got > want:
            raise Mistake(f"{told}, you say {got}. The last token is chosen and never stored: it needs no slot")
        if got == blocks_needed(count * (prompt + output - 1), size) and got < want:
            raise Mistake(f"{told}, you say {got}. Round up for each request: nobody shares a block here")
        if got == count * blocks_needed(prompt + output - 1, size):
            raise Mistake(f"{told}, you say {got}. The last one to come must leave int(watermark x blocks) free")
        if got == count * blocks_needed(prompt, size):
            raise Mistake(f"{told}, you say {got}. That holds the prompts; the outputs grow")
        if got > want >= count * blocks_needed(prompt + output - 1, size):
            raise Mistake(
                f"{told}, you say {got}. More than needed: the watermark must be free when the last one comes in, and "
                "then that one holds its prompt only; later growth may use it"
            )
        raise Mistake(f"{told}, you say {got}. Count the blocks of one request at its end, times the requests")


# --- admission -----------------------------------------------------------------------------------------------------


def admitted(waiting: list[int], free: int, watermark: int, running: int, max_num_seqs: int) -> int:
    """The right answer: how many from the head of the queue come in now; `waiting` holds blocks that each needs."""
    count = 0
    for needed in waiting:
        spare = watermark if running + count else 0
        if running + count >= max_num_seqs or needed + spare > free:
            break
        free -= needed
        count += 1
    return count


@exercise("first come, first served; the watermark stays free, unless nobody runs who could need it")
def check_10_admission(answer: Callable[..., int]) -> None:
    """`answer(waiting, free, watermark, running, max_num_seqs)` -> how many from the head of the queue come in."""
    cases = [
        ([2, 3, 1], 10, 0, 0, 8, "all three fit"),
        ([2, 9, 1], 6, 0, 1, 8, "the second does not fit, and the third must not overtake it"),
        ([2, 2], 5, 2, 1, 8, "after the first 3 are free, and the second would leave 1 of the 2 for the watermark"),
        ([3], 5, 2, 1, 8, "3 + 2 are exactly 5: equal is enough"),
        ([6], 6, 2, 0, 8, "nobody runs, so nobody needs the watermark; else this one would wait for ever"),
        ([3, 2], 5, 1, 0, 8, "the first comes in to nobody; for the second somebody runs, and the watermark counts"),
        ([1, 1, 1], 9, 0, 2, 4, "at most max_num_seqs run at a time"),
        ([], 9, 1, 0, 8, "the queue is empty"),
    ]
    for *case, why in cases:
        got, want = whole(attempt(answer, *case)), admitted(*case)
        if got != want:
            waiting, free, watermark, running, most = case
            raise Mistake(
                f"waiting {waiting}, {free} free, watermark {watermark}, {running} running, at most {most}: {want} "
                f"come in, you say {got}; {why}"
            )


# --- who gives way -------------------------------------------------------------------------------------------------


def who_gives_way() -> dict[str, str]:
    """The right answer, by the real scheduler: four sequences, each in one full block, no block free."""
    out = {}
    for name, wanting in (("A", 0), ("B", 1), ("D", 3)):
        scheduler = Scheduler(BlockManager(4, 4, watermark=0), 8, 64)
        sequences = [Sequence(i, [0] * 4, 4, 9) for i in range(4)]
        for seq in sequences:
            scheduler.add(seq)
        scheduler.schedule()
        for seq in sequences:
            seq.num_computed_tokens = (
                4 if seq.seq_id == wanting else 3
            )  # the others compute a token they have a slot for
        sequences[wanting].token_ids.append(0)
        scheduler.schedule()
        out[f"{name} wants a block"] = "".join("ABCD"[s.seq_id] for s in scheduler.waiting)
    _, told = rehearse(Scheduler(BlockManager(2, 4, watermark=0), 8, 64), [(4, 30)])
    assert told[0].finish_reason == "out_of_blocks"
    out["A runs alone and wants a block"] = "nobody"
    return out


@exercise("the newest gives way, even when it is the one that asks; alone, there is nobody to wait for")
def check_10_who_gives_way(answer: dict[str, str]) -> None:
    """`answer` maps each situation to one of A, B, C, D or nobody."""
    right = who_gives_way()
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise Mistake(f"give a dictionary with the keys {', '.join(right)}")
    if any(map(is_blank, answer.values())):
        raise NotAttempted
    why = {
        "A wants a block": "D came last: what is lost by computing it again is least, and A came first",
        "B wants a block": "D, the newest of all, not the one next to B",
        "D wants a block": "D is the newest itself: it gives way, and nobody older does",
        "A runs alone and wants a block": "there is nobody else, and giving way itself would help nothing: it ends",
    }
    for case, want in right.items():
        if str(answer[case]).strip().lower() != want.lower():
            raise Mistake(f"{case}: {want} gives way, you say {answer[case]}; {why[case]}")
