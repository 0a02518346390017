"""Reads a torch.export program (a user's nn.Module) into a graph."""

from __future__ import annotations

import operator
from collections import Counter
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.reading import Reading, UnsupportedNode, chosen_output
from shakeproof.network.torch_call import FLOATS, widened
from shakeproof.network.torch_rules import OPERATORS, softmax_axis

# By word, what a final one is called in notes.
SOFTMAX = {"softmax": "Softmax", "_softmax": "Softmax", "log_softmax": "LogSoftmax", "_log_softmax": "LogSoftmax"}
# What makes truth values of numbers.
COMPARISONS = {"eq", "ge", "gt", "isnan", "le", "lt"}
# What a rule runs into where a node is not used as it expects.
UNEXPECTED = (Unsupported, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


def read(program: ExportedProgram, name: str, output_name: str | None = None) -> Reading:
    """The program's graph, or every reason why there is none."""
    number = output_number(program, name, output_name)
    if any(_word(node).endswith("_") for node in program.graph.nodes if node.op == "call_function"):
        program = program.run_decompositions({})  # what works in place may change other values: write it without
    reader = _TorchReader(program, name, number)
    for node in program.graph.nodes:
        if node.op == "call_function" and node.users:  # else a check, or an output that nobody asked for
            reader.take(node)
    return reader.finish()


def image_input(program: ExportedProgram, name: str) -> torch.fx.Node:
    """The one input of a program that is not a weight."""
    held = _held(program)
    images: list[torch.fx.Node] = [
        node for node in program.graph.nodes if node.op == "placeholder" and node.name not in held
    ]
    if len(images) != 1:
        raise UnsupportedNetworkError(
            f"{name}: the module has {len(images)} inputs; shakeproof needs one image in, class scores out"
        )
    if images[0].meta["val"].dtype not in FLOATS:
        raise UnsupportedNetworkError(f"{name}: the input is not float32 or float64; export the module for one of them")
    return images[0]


def with_fixed_size(program: ExportedProgram, name: str, picture: tuple[int, int, int] | None) -> ExportedProgram:
    """The program for one picture of a fixed size, where it was exported for several or left sizes open."""
    image = image_input(program, name).meta["val"]
    open_axes = [axis for axis, size in enumerate(image.shape) if not isinstance(size, int)]
    if not open_axes:
        return program
    shape = [1, *([*picture][1 - image.dim() :] if picture else image.shape[1:])]
    if len(shape) != image.dim() or not all(isinstance(size, int) for size in shape):
        raise InputError(
            f"{name}: the input's shape {list(image.shape)} leaves its size open; say for which pictures it is meant",
            option="image_shape",
        )
    try:
        return torch.export.export(program.module(), (torch.zeros(shape, dtype=image.dtype),))
    except Exception as error:  # torch.export raises whatever it meets
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: cannot be run on a picture of {shape[1:]} ({said})") from error


def output_number(program: ExportedProgram, name: str, output_name: str | None) -> int:
    """Which of the program's outputs is meant, in their order."""
    nodes = program.graph.output_node().args[0]
    shapes = {
        key: list(node.meta["val"].shape)
        for key, node in zip(_output_names(program), nodes, strict=True)
        if isinstance(node, torch.fx.Node)
    }
    if not shapes:
        raise InputError(f"{name}: the module has no outputs that are computed; shakeproof needs class scores")
    return _output_names(program).index(chosen_output(shapes, output_name, name))


def _output_names(program: ExportedProgram) -> list[str]:
    """What the outputs are called: by the keys of a dictionary, or numbered."""
    count, spec = len(program.graph.output_node().args[0]), program.call_spec.out_spec
    keys = list(map(str, spec.context)) if spec is not None and spec.type is dict else []
    return keys if len(keys) == count else list(map(str, range(count)))


class _TorchReader:
    """The values known so far, and the problems met."""

    def __init__(self, program: ExportedProgram, name: str, number: int) -> None:
        self.name = name
        image = image_input(program, name)
        self.builder = Builder([int(size) for size in image.meta["val"].shape])
        self.known: dict[str, Any] = {image.name: self.builder.input}
        weights = {**program.state_dict, **program.constants}
        for place, held in _held(program).items():
            self.known[place] = widened(weights[held].detach())
        self.output = program.graph.output_node().args[0][number].name
        outputs = _output_names(program)
        among = f"of the outputs {', '.join(outputs)}, {outputs[number]} is analysed"
        self.notes = (among,) if len(outputs) > 1 else ()
        self.operators: Counter[str] = Counter()
        self.problems: list[UnsupportedNode] = []
        self.dropped: str | None = None

    def take(self, node: torch.fx.Node) -> None:
        """Read one node; what it needs has been read, or has failed."""
        word = _word(node)
        if any(argument.name not in self.known for argument in node.all_input_nodes):  # behind one that failed
            self.operators[word] += 1
            if word not in OPERATORS:
                self.problems.append(UnsupportedNode(word, node.name, "not supported"))
            return
        arguments = torch.fx.map_arg(node.args, lambda n: self.known[n.name])
        options = torch.fx.map_arg(node.kwargs, lambda n: self.known[n.name])
        try:
            if any(isinstance(leaf, Value) for leaf in tree_leaves((arguments, options))):
                self.known[node.name] = self._made(node, arguments, options)
            else:
                self.known[node.name] = _folded(node, arguments, options)
                self.builder.is_exact = False
        except UNEXPECTED as problem:
            self.problems.append(UnsupportedNode(word, node.name, " ".join(str(problem).split())))

    def finish(self) -> Reading:
        graph = None
        output_shape: tuple[int, ...] = ()
        if not self.problems:
            final = self.known.get(self.output)
            if not isinstance(final, Value):
                raise UnsupportedNetworkError(f"{self.name}: the output does not depend on the input")
            try:
                graph, output_shape = self.builder.finish(final), tuple(final.shape)
            except Unsupported as problem:
                self.problems.append(UnsupportedNode("output", self.output, str(problem)))
        return Reading(graph, self.operators, tuple(self.problems), self.dropped, output_shape, self.notes)

    def _made(self, node: torch.fx.Node, arguments: Any, options: Any) -> Any:
        """What a node that the image flows into gives."""
        word = _word(node)
        self.operators[word] += 1
        rule = OPERATORS.get(word)
        if rule is None:
            raise Unsupported("not supported")
        self._check_types(node, word, arguments, options)
        if word in SOFTMAX and node.name == self.output:
            x, axis = arguments[0], softmax_axis(*arguments, **options)
            if x.shape[axis] == prod(x.shape):  # over all entries: it does not change their order
                self.dropped = SOFTMAX[word]
                return x
        return rule(self.builder, *arguments, **options)

    def _check_types(self, node: torch.fx.Node, word: str, arguments: Any, options: Any) -> None:
        """Refuse what rules, which see no types, would take for something else."""
        made = getattr(node.meta["val"], "dtype", None)  # of several outputs, none
        given = {n.meta["val"].dtype for n in node.all_input_nodes if isinstance(self.known[n.name], Value)}
        if word in ("add", "sub") and made == torch.bool:
            raise Unsupported("a sum of truth values, which is none of numbers")
        if made not in (None, *FLOATS) and given.intersection(FLOATS) and word not in COMPARISONS:
            raise Unsupported(f"a result of type {made}, which rounds it")
        if word == "scaled_dot_product_attention" and torch.bool in given:
            raise Unsupported("attention with a computed choice of what takes part")
        epsilon = arguments[3] if len(arguments) > 3 else options.get("eps")
        if word == "rms_norm" and epsilon is None and made != torch.float32:
            raise Unsupported(f"without an epsilon, in {made}, which has one of its own")


def _held(program: ExportedProgram) -> dict[str, str]:
    """By a placeholder's name, the weight or constant that it stands for."""
    signature = program.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def _folded(node: torch.fx.Node, arguments: Any, options: Any) -> Any:
    """A node that depends on constants only, computed by torch itself, floats in float64."""
    if "::" in _word(node):
        raise Unsupported("not supported")
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise Unsupported("random numbers")
    return tree_map(widened, target(*arguments, **options))


def _word(node: torch.fx.Node) -> str:
    """An operator's name without its overload: `clamp_` for aten.clamp_.default.

    With its namespace unless it is one of torch's own, so that no rule is found for it.
    """
    target: Any = node.target
    if target is operator.getitem:
        return "getitem"
    name = str(getattr(target, "__name__", target)).partition(".")[0]
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return name
    return f"{getattr(target, 'namespace', None) or getattr(target, '__module__', '')}::{name}"
