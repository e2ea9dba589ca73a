"""The places after which a traced module can be cut."""

from collections.abc import Sequence
from itertools import pairwise

from torch import fx, nn

from offramp.errors import NetworkError
from offramp.networks.fx.trace import TracedModule, dependents, scopes_of
from offramp.networks.layout import Channels, is_plain_sequential


class Cuts:
    """The places where a traced module can be cut."""

    def __init__(self, traced: TracedModule) -> None:
        self.traced = traced
        self.nodes = traced.nodes
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self.from_input = dependents(self.nodes, self.nodes[0])

    def node_after(self, name: str) -> fx.Node:
        """The value that a submodule returns; it must be called once, and return one value."""
        returned = self.traced.returned.get(name, [])
        if len(returned) != 1:
            times = "never" if not returned else f"{len(returned)} times"
            raise NetworkError(
                f"`{name}` is called {times} in forward, so there is no single place after it; "
                "put the exit after another module"
            )
        if not isinstance(returned[0], fx.Proxy):
            raise NetworkError(
                f"`{name}` returns a {type(returned[0]).__name__} and not one tensor that a head "
                "could read; put the exit after another module"
            )
        return returned[0].node

    def live(self, cut: fx.Node) -> list[fx.Node]:
        """What is needed after a cut: the value itself first, then what skips over it."""
        last = self.position[cut]
        skipping = [
            node
            for node in self.nodes[: last + 1]
            if node is not cut
            and node.op != "get_attr"
            and any(self.position.get(user, last + 1) > last for user in node.users)
        ]
        return [cut, *skipping]

    def check(self, name: str) -> None:
        """Raise `NetworkError` if a submodule lies inside a branch.

        It does if a value bypasses it within one of the modules that contain it, or if layers
        that run later do not depend on it.
        """
        cut = self.node_after(name)
        for skipping in self.live(cut)[1:]:
            around = self._module_around(name, skipping, cut)
            if around:
                raise NetworkError(
                    f"`{name}` lies inside a branch of `{around}`: `{skipping.name}` bypasses "
                    f"it there; put the exit after `{around}`"
                )
        branch = self._other_branch(cut)
        if branch is not None:
            raise NetworkError(
                f"`{name}` lies inside a branch: `{branch.target}` runs on another one, and what "
                "follows needs both; put the exit where the branches have joined"
                + self._better_place(cut)
            )

    def _module_around(self, name: str, skipping: fx.Node, cut: fx.Node) -> str | None:
        """The outermost module that contains `name` and inside which a value bypasses it."""
        parents = [scope for scope in scopes_of(cut) if name.startswith(f"{scope}.")]
        later = [user for user in skipping.users if self._runs_after(user, cut)]
        for parent in parents:
            # A container runs its children one after the other: nothing bypasses one inside it.
            if is_plain_sequential(self.traced.root.get_submodule(parent)):
                continue
            if any(parent in scopes_of(user) for user in later):
                return parent
        return None

    def _runs_after(self, node: fx.Node, cut: fx.Node) -> bool:
        return self.position.get(node, len(self.nodes)) > self.position[cut]

    def _other_branch(self, cut: fx.Node) -> fx.Node | None:
        """A node with weights on another branch: later, or earlier and still to be joined."""
        below = needed_for([cut], set())
        for node in self.live(cut)[1:]:
            own = [each for each in needed_for([node], below) if self._is_work(each)]
            if node not in below and own:
                return max(own, key=self.position.__getitem__)
        above = dependents(self.nodes, cut)
        later = self.nodes[self.position[cut] + 1 :]
        return next((node for node in later if node not in above and self._is_work(node)), None)

    def _is_work(self, node: fx.Node) -> bool:
        """Whether a node has weights and sees the input."""
        return self.traced.has_weights(node) and node in self.from_input

    def _better_place(self, cut: fx.Node) -> str:
        for name, returned in self.traced.returned.items():
            node = returned[0].node if isinstance(returned[0], fx.Proxy) else None
            if node in self.position and self._runs_after(node, cut) and self._is_clean(name):
                return f", such as after `{name}`"
        return ""

    def clean(self, names: Sequence[str]) -> list[str]:
        """The names after which the module can be cut, in the order they run."""
        return sorted(filter(self._is_clean, names), key=self._place)

    def _is_clean(self, name: str) -> bool:
        try:
            self.check(name)
        except NetworkError:
            return False
        return True

    def _place(self, name: str) -> int:
        return self.position[self.node_after(name)]

    def ordered(self, names: list[str]) -> list[str]:
        """Check the names that a user gave, and that they are in the order they run."""
        for name in names:
            self.check(name)
        for name, next_name in pairwise(names):
            if self._place(next_name) <= self._place(name):
                raise NetworkError(
                    "exits must be named in the order in which the backbone runs them, but "
                    f"`{next_name}` comes no later than `{name}`; swap them"
                )
        return names

    def classifier(self) -> fx.Node | None:
        """The last linear layer, if all that follows it are operations without weights."""
        node = self.traced.output
        while isinstance(node, fx.Node) and node.op != "placeholder":
            if node.op == "call_module":
                module = self.traced.root.get_submodule(str(node.target))
                if isinstance(module, nn.Linear):
                    # Only if nothing bypasses it can the rest of the graph be a head.
                    before = node.args[0]
                    alone = isinstance(before, fx.Node) and len(self.live(before)) == 1
                    return node if alone else None
            if self.traced.has_weights(node) or len(node.all_input_nodes) != 1:
                return None
            node = node.all_input_nodes[0]
        return None

    def channels(self, cut: fx.Node) -> Channels | None:
        """What the last layer before a cut, that it depends on, says about its channels."""
        below = needed_for([cut], set())
        for node in reversed(self.nodes[: self.position[cut] + 1]):
            if node in below and node.op == "call_module":
                found = Channels.of(self.traced.root.get_submodule(str(node.target)))
                if found is not None:
                    return found
        return None

    def is_early(self, name: str) -> bool:
        """Whether anything with weights but the classifier runs after a submodule."""
        after = self.nodes[self._place(name) + 1 :]
        own = self.classifier()
        return any(node is not own and self.traced.has_weights(node) for node in after)


def needed_for(outputs: Sequence[fx.Node], known: set[fx.Node]) -> set[fx.Node]:
    """All nodes that the outputs depend on, back to those that are known."""
    needed: set[fx.Node] = set()
    waiting = [node for node in outputs if node not in known]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [each for each in node.all_input_nodes if each not in known]
    return needed
