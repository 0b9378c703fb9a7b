"""Plausible wrong answers to chapter 7's exercises, and what the check must say about each."""

WRONG = {
    "check_07_physical_slot": [
        (lambda table, position, size: table[position // size] * size, "add the offset"),
        (lambda table, position, size: table[position // size] + position % size, "multiply first"),
        (lambda table, position, size: table[0] * size + position, "start address plus offset"),
        (
            lambda table, position, size: table[min((position + 1) // size, len(table) - 1)] * size + position % size,
            "positions count from 0",
        ),
        (lambda table, position, size: position, "the position itself"),
        (lambda table, position, size: table[position % size], "raised IndexError"),
        (lambda table, position, size: table[position // size] * size + size - 1, "at offset 4"),
        (lambda table, position, size: float("nan"), "a whole number is expected"),
    ],
    "check_07_needs_new_block": [
        (lambda n, size: (n + 1) % size == 1, "With blocks of 1"),
        (lambda n, size: n > 0 and n % size == 0, "first token needs the first block"),
        (lambda n, size: n == 0 or (n + 1) % size == 0, "would be wasted"),
        (lambda n, size: n == 0, "nowhere to go"),
        (lambda n, size: n % size, "return True or False"),
    ],
    "check_07_workload": [
        (lambda lengths, size: (sum(n // size for n in lengths), 0), "rounded down"),
        (lambda lengths, size: (sum(n // size + 1 for n in lengths), 6), "one block too many"),
        (
            lambda lengths, size: (-(-sum(lengths) // size), -(-sum(lengths) // size) * size - sum(lengths)),
            "do not share a block",
        ),
        (lambda lengths, size: (sum(-(-n // size) for n in lengths), sum(n % size for n in lengths)), "empty slots"),
        (lambda lengths, size: sum(-(-n // size) for n in lengths), "return two numbers"),
        (lambda lengths, size: (99, 0), "Request by request"),
    ],
}
