"""Steps through the tree of a lexicon."""

from __future__ import annotations

from regatta.decode.compiled import compiled, place
from regatta.decode.lexicon import Tree


@compiled
def child(tree: Tree, node: int, symbol: int) -> int:
    """The node that a symbol leads to, or -1."""
    stop = int(tree.first_child[node + 1])
    at = place(tree.child_symbol, int(tree.first_child[node]), stop, symbol)
    if at < stop and tree.child_symbol[at] == symbol:
        return int(tree.child_node[at])
    return -1
