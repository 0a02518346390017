"""Reads a torch.export program (a user's nn.Module) into a graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.graph import Graph
from shakeproof.network.torch_rules import OPERATORS

# By word, what a final one is called in notes.
SOFTMAX = {"softmax": "Softmax", "_softmax": "Softmax", "log_softmax": "LogSoftmax", "_log_softmax": "LogSoftmax"}


@dataclass(frozen=True)
class Reading:
    """The program's graph, a final softmax that it leaves out, the type of number that the program takes, and the
    output's shape before it was flattened.
    """

    graph: Graph
    dropped: str | None
    dtype: torch.dtype
    output_shape: tuple[int, ...]


def read(program: ExportedProgram, name: str) -> Reading:
    """The program's graph; an error that lists every operator that cannot be analysed."""
    if any(_word(node).endswith("_") for node in program.graph.nodes if node.op == "call_function"):
        program = program.run_decompositions({})  # what works in place may change other values: write it without
    signature = program.graph_signature
    weights = {**program.state_dict, **program.constants}
    held = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    images = [node for node in placeholders if node.name not in held]
    if len(images) != 1:
        raise InputError(
            f"{name}: the module has {len(images)} inputs; shakeproof needs one image in, class scores out"
        )
    builder = Builder([int(size) for size in images[0].meta["val"].shape])
    known: dict[str, Any] = {images[0].name: builder.input}
    for node in placeholders:
        if node.name in held:
            weight = weights[held[node.name]].detach()
            known[node.name] = weight.double() if weight.is_floating_point() else weight
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    outputs = program.graph.output_node().args[0]
    if len(outputs) != 1 or not isinstance(outputs[0], torch.fx.Node):
        raise InputError(f"{name}: the module has {len(outputs)} outputs; shakeproof needs one, the class scores")
    output = outputs[0].name
    problems, dropped = [], None
    for node in calls:
        word = _word(node)
        rule = OPERATORS.get(word)
        if any(argument.name not in known for argument in node.all_input_nodes):  # behind a node that already failed
            if rule is None:
                problems.append(f"{word} ({node.name})")
            continue
        arguments = torch.fx.map_arg(node.args, lambda n: known[n.name])
        options = torch.fx.map_arg(node.kwargs, lambda n: known[n.name])
        try:
            if word in SOFTMAX and node.name == output and _ranks_all(*arguments[:2]):
                known[output] = arguments[0]
                dropped = SOFTMAX[word]
                continue
            if not any(isinstance(leaf, Value) for leaf in tree_leaves((arguments, options))):
                known[node.name] = node.target(*arguments, **options)
                continue
            if rule is None:
                raise Unsupported("not supported")
            known[node.name] = rule(builder, *arguments, **options)
        except (
            Unsupported,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as problem:
            problems.append(f"{word} ({node.name}): {problem}")
    if problems:
        raise UnsupportedNetworkError(f"{name}: {len(problems)} operators cannot be analysed: {'; '.join(problems)}")
    try:
        final = known[output]
        return Reading(builder.finish(final), dropped, images[0].meta["val"].dtype, tuple(final.shape))
    except Unsupported as problem:
        raise UnsupportedNetworkError(f"{name}: {problem}") from None


def _ranks_all(x: Value, axis: int) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    return x.shape[axis] == prod(x.shape)


def _word(node: torch.fx.Node) -> str:
    """An operator's name without its overload: `clamp_` for aten.clamp_.default."""
    name: str = getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0]
