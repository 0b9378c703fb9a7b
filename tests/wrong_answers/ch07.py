"""Plausible wrong answers to chapter 7's exercises, and what the check must say about each."""


def _position(table, slot, size):
    return table.index(slot // size) * size + slot % size if slot // size in table else -1


def _blocks_of_the_longest(lengths, size):
    return len(lengths) * -(-max(lengths) // size), _workload(lengths, size)[1]


def _workload(lengths, size):
    return sum(-(-n // size) for n in lengths), sum(-n % size for n in lengths)


WRONG = {
    "check_07_physical_slot": [
        (lambda table, slot, size: slot, "the slot itself"),
        (lambda table, slot, size: table.index(slot // size) * size, "add the offset"),
        (lambda table, slot, size: table.index(slot // size) + slot % size, "multiply first"),
        (lambda table, slot, size: _position(table, slot, size) + 1, "positions count from 0"),
        (lambda table, slot, size: _position(table, slot, size) + size, "One block too far"),
        (lambda table, slot, size: table.index(slot // size), "and which place in it?"),
        (lambda table, slot, size: table.index(slot // size) * size + slot % size, "is not in the table: return -1"),
        (lambda table, slot, size: max(0, _position(table, slot, size)), "it is somebody else's, or free"),
        (lambda table, slot, size: table[slot // size] * size + slot % size, "IndexError"),
        (lambda table, slot, size: float("nan"), "a whole number is expected"),
        (lambda table, slot, size: 99, "the table names this block at place 1"),
    ],
    "check_07_needs_new_block": [
        (lambda n, size: (n + 1) % size == 1, "With blocks of 1"),
        (lambda n, size: n > 0 and n % size == 0, "first token needs the first block"),
        (lambda n, size: n == 0 or (n + 1) % size == 0, "would be wasted"),
        (lambda n, size: n == 0, "nowhere to go"),
        (lambda n, size: n % size != 0, "the other way round"),
        (lambda n, size: (n + 1) % size == 0, "the token after it needs the next"),
        (lambda n, size: n % size == 1, "one token too late"),
        (lambda n, size: n >= size, "True for good"),
        (lambda n, size: False, "never comes"),
        (lambda n, size: True, "that block would be wasted"),
        (lambda n, size: n % size, "return True or False"),
        (lambda n, size: "yes", "return True or False"),
    ],
    "check_07_workload": [
        (lambda lengths, size: (sum(n // size for n in lengths), 0), "rounded down"),
        (lambda lengths, size: (sum(n // size + 1 for n in lengths), 6), "one block too many"),
        (
            lambda lengths, size: (-(-sum(lengths) // size), -(-sum(lengths) // size) * size - sum(lengths)),
            "do not share a block",
        ),
        (
            lambda lengths, size: (sum(-(-n // size) for n in lengths), sum(n % size for n in lengths)),
            "in the last blocks",
        ),
        (lambda lengths, size: ([-(-n // size) for n in lengths], [-n % size for n in lengths]), "add them up"),
        (lambda lengths, size: _workload(lengths, size)[::-1], "the number of blocks comes first"),
        (lambda lengths, size: (_workload(lengths, size)[0], sum(size - n % size for n in lengths)), "leaves no slot"),
        (lambda lengths, size: (_workload(lengths, size)[0], -lengths[-1] % size), "the last request only"),
        (lambda lengths, size: (_workload(lengths, size)[0], size * _workload(lengths, size)[0]), "all slots"),
        (lambda lengths, size: (_workload(lengths, size)[0], 0.375), "is a share"),
        (_blocks_of_the_longest, "as the longest one needs"),
        (lambda lengths, size: sum(-(-n // size) for n in lengths), "return two numbers"),
        (lambda lengths, size: (99, 0), "Request by request"),
    ],
}
