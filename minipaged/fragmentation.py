"""Chapter 6. Where KV memory goes when every request must lie in one piece.

Requests (prompt length, output length) queue for a pool of slots, one slot a token. An allocator says whether the first
in the queue may come in and where it lies; every running request writes one token a step; the simulator counts what each
slot of the pool is doing:

    pool  [tokens |reserved: for its own later tokens|internal: never used][external: free or rounding, someone waits]
           ^ solid ^ hatched                          ^ dotted              ^ light      (idle: free, nobody waits)

Left out: time (every step counts as one, a prefill too) and the model: only lengths matter to memory.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Allocator(Protocol):
    """What the simulator asks of an allocator. `Paged` in chapter 7 answers the same calls through a real block table.

    The simulator calls, in this order:
        reset(num_slots)      once, at the start of a run: an empty pool of that many slots. Bad sizes raise here.
        why_never(p, o)       before a request joins the queue. A sentence if a request of p prompt and o output tokens
                              could not run to its end even alone in an empty pool, else None. It is then refused, counted,
                              and the others go on. Must be None only if admit(_, p + g, o - g) succeeds in an empty pool
                              for every 0 <= g < o and grow then succeeds up to p + o tokens (a watermark counts!).
        admit(request, p, o)  for the first in the queue: True and room for at least p tokens, or False and nothing
                              changed. A preempted request comes back with p = prompt + written so far, and o = the rest.
        capacity(request)     after admit and after each grow: how many tokens fit without asking again.
        grow(request, n)      only when the next token would be token number n > capacity: make room for n tokens in
                              all. False and nothing changed when there is no room: the newest running request is then
                              preempted (freed, put at the head of the queue, recomputed later) and grow is called again.
                              It is called only at a border: block managers that count tokens add n minus what they know.
        free(request)         when it has finished or is preempted.
        num_free              slots held by nobody.
        spans(request)        only when recording: the physical runs it holds, [(first slot, number of slots)], in order.

    `request` is an integer. Which waste is which is not the allocator's business; the simulator sets, over the requests,

        tokens   = slots written                         reserved = min(capacity, p + o) - slots written
        internal = capacity - min(capacity, p + o)       idle     = num_free if nobody waits, else 0
        external = num_slots - (the four others): rounding held beyond `capacity`, and free slots while someone waits
    """

    name: str

    def reset(self, num_slots: int) -> None: ...

    def why_never(self, prompt_len: int, output_len: int) -> str | None: ...

    def admit(self, request: int, prompt_len: int, output_len: int) -> bool: ...

    def capacity(self, request: int) -> int: ...

    def grow(self, request: int, num_tokens: int) -> bool: ...

    def free(self, request: int) -> None: ...

    @property
    def num_free(self) -> int: ...

    def spans(self, request: int) -> list[tuple[int, int]]: ...
