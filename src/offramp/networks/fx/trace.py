"""Tracing any module with `torch.fx`: its graph, its blocks, and where it can be cut."""

import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from torch import fx, nn

from offramp.errors import NetworkError
from offramp.files import with_article
from offramp.networks.layout import (
    Channels,
    has_weight_matrix,
    is_composite,
    is_plain_sequential,
    no_such_module,
)
from offramp.networks.state import evaluating

# A subclass of one of these is one operation as well, wherever it is defined.
_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
)

# A sequence with more layers than this, such as all features of a VGG, is not a block.
_MOST_LAYERS = 3


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type, ...], functions: tuple[Any, ...]) -> None:
        super().__init__(autowrap_functions=functions)
        self.leaves = (*_LAYERS, *leaves)
        self.returned: dict[str, list[Any]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401
        result = super().call_module(m, forward, args, kwargs)
        self.returned.setdefault(self.path_of_module(m), []).append(result)
        return result


class TracedModule:
    """What a module does, as a graph, and the places where it can be cut.

    Args:
        root: The module.
        training: In which of its two modes it is traced.

    Attributes:
        nodes: The graph's operations without its output, in the order in which they run.
        output: What the module returns.
        position: The index of each node.
        returned: What each submodule returned, once for every time that it was called.

    Raises:
        NetworkError: `torch.fx` cannot trace the module; the message says why.
    """

    def __init__(self, root: nn.Module, training: bool) -> None:
        self.root = root
        name, mode = type(root).__name__, "training" if training else "eval"
        tracer = _Tracer(*_opaque(root))
        try:
            with evaluating(root):
                root.train(training)
                self.graph = tracer.trace(root, concrete_args=_defaults(root))
        except Exception as error:
            # The user's forward may raise anything when it is given a proxy instead of a tensor.
            raise NetworkError(
                f"torch.fx cannot trace {name}: {error}. Give the network as a list of stages, or "
                "give it a method layout() that returns an offramp.networks.Layout"
            ) from error
        _drop_further_inputs(self.graph, name)
        self.returned = tracer.returned
        *self.nodes, end = self.graph.nodes
        self.output = end.args[0]
        if not isinstance(self.output, fx.Node):
            raise NetworkError(
                f"{name}.forward must return one tensor of logits, and in {mode} mode it returns "
                f"{with_article(_kind(self.output))}: return the logits alone, for example from a "
                "small module around it"
            )
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self._from_input = _dependents(self.nodes, self.nodes[0])

    def module_of(self, node: fx.Node) -> nn.Module:
        """The submodule that a node calls."""
        return self.root.get_submodule(str(node.target))

    def has_weights(self, node: fx.Node) -> bool:
        """Whether a node uses parameters of the module."""
        if node.op == "call_module":
            return any(True for _ in self.module_of(node).parameters())
        return any(each.op == "get_attr" for each in node.all_input_nodes)

    def node_after(self, name: str) -> fx.Node:
        """The value that a submodule returns; it must be called once, and return one value."""
        returned = self.returned.get(name, [])
        if len(returned) != 1:
            times = "never" if not returned else f"{len(returned)} times"
            raise NetworkError(
                f"`{name}` is called {times} in forward, so there is no single place after it; "
                "put the exit after another module"
            )
        if not isinstance(returned[0], fx.Proxy):
            raise NetworkError(
                f"`{name}` returns {with_article(_kind(returned[0]))} and not one tensor that a "
                "head could read; put the exit after another module"
            )
        return returned[0].node

    def live(self, cut: fx.Node) -> list[fx.Node]:
        """What is needed after a cut: the value itself first, then what skips over it."""
        skipping = [
            node
            for node in self.nodes[: self.position[cut]]
            if node.op != "get_attr" and any(self._runs_after(user, cut) for user in node.users)
        ]
        return [cut, *skipping]

    def cuts_after(self, names: Iterable[str]) -> list[str]:
        """The names that a user gave, in the order they run; the module can be cut after each."""
        known = [name for name, _ in self.root.named_modules() if name]
        places: dict[int, str] = {}
        for name in names:
            if name not in known:
                raise NetworkError(no_such_module(name, known))
            self._check_cut(name)
            places[self._place(name)] = name
        return [places[place] for place in sorted(places)]

    def cuts_found(self) -> list[str]:
        """The blocks after which the module can be cut, in the order they run."""
        return self.cuts_after(filter(self._is_clean_cut, _block_names(self)))

    def _place(self, name: str) -> int:
        return self.position[self.node_after(name)]

    def _runs_after(self, node: fx.Node, cut: fx.Node) -> bool:
        # The output is not among the nodes: it comes after all of them.
        return self.position.get(node, len(self.nodes)) > self.position[cut]

    def _check_cut(self, name: str) -> None:
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

    def _is_clean_cut(self, name: str) -> bool:
        try:
            self._check_cut(name)
        except NetworkError:
            return False
        return True

    def _module_around(self, name: str, skipping: fx.Node, cut: fx.Node) -> str | None:
        """The outermost module that contains `name` and inside which a value bypasses it."""
        parents = [scope for scope in scopes_of(cut) if name.startswith(f"{scope}.")]
        later = [user for user in skipping.users if self._runs_after(user, cut)]
        for parent in parents:
            # A container runs its children one after the other: nothing bypasses one inside it.
            is_container = is_plain_sequential(self.root.get_submodule(parent))
            if not is_container and any(parent in scopes_of(user) for user in later):
                return parent
        return None

    def _other_branch(self, cut: fx.Node) -> fx.Node | None:
        """A node with weights on another branch: later, or earlier and still to be joined."""
        below = needed_for([cut], set())
        for node in self.live(cut)[1:]:
            own = [each for each in needed_for([node], below) if self._is_work(each)]
            if node not in below and own:
                return max(own, key=self.position.__getitem__)
        above = _dependents(self.nodes, cut)
        later = self.nodes[self.position[cut] + 1 :]
        return next((node for node in later if node not in above and self._is_work(node)), None)

    def _is_work(self, node: fx.Node) -> bool:
        """Whether a node has weights and sees the input."""
        return self.has_weights(node) and node in self._from_input

    def _better_place(self, cut: fx.Node) -> str:
        for name, returned in self.returned.items():
            node = returned[0].node if isinstance(returned[0], fx.Proxy) else cut
            if node in self.position and self._runs_after(node, cut) and self._is_clean_cut(name):
                return f", such as after `{name}`"
        return ""

    def classifier(self) -> fx.Node | None:
        """The last linear layer, if all that follows it are operations without weights."""
        node = self.output
        while isinstance(node, fx.Node) and node.op != "placeholder":
            if node.op == "call_module" and isinstance(self.module_of(node), nn.Linear):
                # Only if nothing bypasses it can the rest of the graph be a head.
                before = node.args[0]
                alone = isinstance(before, fx.Node) and len(self.live(before)) == 1
                return node if alone else None
            if self.has_weights(node) or len(node.all_input_nodes) != 1:
                return None
            node = node.all_input_nodes[0]
        return None

    def channels_after(self, name: str) -> Channels | None:
        """What the last layer before a cut, that it depends on, says about its channels."""
        below = needed_for([self.node_after(name)], set())
        for node in reversed(self.nodes):
            if node in below and node.op == "call_module":
                found = Channels.of(self.module_of(node))
                if found is not None:
                    return found
        return None

    def is_early(self, name: str) -> bool:
        """Whether anything with weights but the classifier runs after a submodule."""
        after, own = self.nodes[self._place(name) + 1 :], self.classifier()
        return any(node is not own and self.has_weights(node) for node in after)


def _defaults(root: nn.Module) -> dict[str, Any]:
    """Arguments of forward after the first that have a default, which they keep."""
    further = list(inspect.signature(root.forward).parameters.values())[1:]
    return {each.name: each.default for each in further if each.default is not each.empty}


def _drop_further_inputs(graph: fx.Graph, name: str) -> None:
    """Drop all inputs but the first, and fx's checks that they have kept their defaults."""
    for node in [node for node in graph.nodes if node.op == "placeholder"][1:]:
        found = _dependents(graph.nodes, node)
        if any(each.op == "output" for each in found):
            raise NetworkError(
                f"{name}.forward reads several arguments ({node.name}), and only modules with "
                "one input can be cut; give the network as a list of stages"
            )
        for each in reversed([each for each in graph.nodes if each in found]):
            graph.erase_node(each)


def _opaque(root: nn.Module) -> tuple[tuple[type, ...], tuple[Any, ...]]:
    """Modules and functions that timm says must not be traced into."""
    if not any(type(child).__module__.startswith("timm.") for child in root.modules()):
        return (), ()
    features = import_module("timm.models._features_fx")
    return tuple(features.get_notrace_modules()), tuple(features.get_notrace_functions())


def _dependents(nodes: Iterable[fx.Node], root: fx.Node) -> set[fx.Node]:
    """A node, and all of `nodes` that depend on it."""
    found = {root}
    for node in nodes:
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


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


def scopes_of(node: fx.Node) -> list[str]:
    """Names of the submodules in whose forward a node was made, outermost first."""
    stack = node.meta.get("nn_module_stack", {})
    return [name for name, _ in stack.values()]


def _block_names(traced: TracedModule) -> list[str]:
    """Names of modules that look like blocks.

    Preferably these are the outermost modules with weights and children, with containers opened.
    If there are fewer than two, they are sequences of a few layers; and if there are fewer than
    two of those, layers with weights, each with what follows it up to the next one.
    """
    root = traced.root
    blocks = _composites(root, "")
    if len(blocks) == 1:
        blocks = _composites(root.get_submodule(blocks[0]), f"{blocks[0]}.")
    for found in (blocks, _short_sequences(root)):
        if len(found) > 1:
            return found
    return _layer_runs(traced)


def _composites(module: nn.Module, prefix: str) -> list[str]:
    found: list[str] = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if is_plain_sequential(child) or isinstance(child, nn.ModuleList):
            found += _composites(child, f"{path}.")
        elif is_composite(child):
            found.append(path)
    return found


def _short_sequences(root: nn.Module) -> list[str]:
    return [
        name
        for name, module in root.named_modules()
        if name
        and is_plain_sequential(module)
        and 1 <= sum(has_weight_matrix(child) for child in module.modules()) <= _MOST_LAYERS
    ]


def _layer_runs(traced: TracedModule) -> list[str]:
    """The last of each layer with weights and the layers without that follow it."""
    calls = [node for node in traced.nodes if node.op == "call_module"]
    heavy = [
        index for index, node in enumerate(calls) if has_weight_matrix(traced.module_of(node))
    ]
    ends = [*(index - 1 for index in heavy[1:]), len(calls) - 1] if heavy else []
    return [str(calls[index].target) for index in ends]


def _kind(value: object) -> str:
    """What a value is for its user; fx has mappings and lists of its own."""
    names = {"immutable_dict": "dict", "immutable_list": "list"}
    return names.get(type(value).__name__, type(value).__name__)
