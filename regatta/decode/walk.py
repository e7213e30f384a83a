"""Steps through the tree of a lexicon."""

from __future__ import annotations

from regatta.decode.compiled import compiled
from regatta.decode.lexicon import Tree


@compiled
def child(tree: Tree, node: int, symbol: int) -> int:
    """The node that a symbol leads to, or -1."""
    low, high = tree.first_child[node], tree.first_child[node + 1]
    while low < high:
        middle = (low + high) >> 1
        if tree.child_symbol[middle] < symbol:
            low = middle + 1
        else:
            high = middle
    if low < tree.first_child[node + 1] and tree.child_symbol[low] == symbol:
        return int(tree.child_node[low])
    return -1
