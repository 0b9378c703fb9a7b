"""A smallest allocator that grows, to test the simulator's growth and preemption without chapter 7's `Paged`."""

from __future__ import annotations


class GrowingChunks:
    """Chunks of `size` slots from a plain free list, handed out as tokens come."""

    def __init__(self, size):
        self.size, self.name = size, "GrowingChunks"

    def reset(self, num_slots):
        self._slots, self.total = num_slots, num_slots // self.size
        self.unused, self.chunks = list(range(self.total)), {}

    def why_never(self, prompt_len, output_len):
        total = prompt_len + output_len
        return f"{total} tokens, the pool holds {self.total * self.size}" if self._count(total) > self.total else None

    def admit(self, request, prompt_len, output_len):
        if self._count(prompt_len) > len(self.unused):
            return False
        self.chunks[request] = []
        return self.grow(request, prompt_len)

    def capacity(self, request):
        return len(self.chunks[request]) * self.size

    def grow(self, request, num_tokens):
        mine = self.chunks[request]
        assert num_tokens > len(mine) * self.size, "asked to grow before it was full"
        more = self._count(num_tokens) - len(mine)
        if more > len(self.unused):
            return False
        mine += [self.unused.pop() for _ in range(more)]
        return True

    def free(self, request):
        self.unused += self.chunks.pop(request)

    @property
    def num_free(self):
        return self._slots - sum(len(mine) for mine in self.chunks.values()) * self.size

    def spans(self, request):
        return [(chunk * self.size, self.size) for chunk in self.chunks[request]]

    def _count(self, tokens):
        return -(-tokens // self.size)
