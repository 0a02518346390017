"""Answers as the competition and the standard have them: is there a counterexample?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shakeproof.cli.inputs import Given
from shakeproof.cli.options import settings_from
from shakeproof.cli.queries import answered, specified
from shakeproof.cli.terminal import Screen, exit_code, say
from shakeproof.errors import InputError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.cli.outputs import Outputs
    from shakeproof.cli.queries import Asked
    from shakeproof.proof import Result


def check_plain(asked: Asked) -> None:
    """Refuse a query with a perturbation: its answer is not about the box in its file."""
    for own in asked.queries:
        if isinstance(own, tuple) and own[1].perturbation is not None:
            raise InputError(f"{own[1].name}: carries a perturbation; verify it without --results and --network")


def write_results(path: Path, result: Result) -> None:
    """As VNN-COMP has it: the answer, and for `sat` every input and output."""
    lines = [_verdict(result, "timeout")]
    found = result.counterexample
    if lines == ["sat"] and found is not None:
        sides = (("X", found.input.flatten()), ("Y", found.outputs.flatten()))
        pairs = "\n ".join(f"({name}_{i} {float(value)!r})" for name, side in sides for i, value in enumerate(side))
        lines.append(f"({pairs})")
    write_whole({path: ("\n".join(lines) + "\n").encode()})


def _verdict(result: Result, late: str) -> str:
    """The answer in the words of satisfiability: is there a counterexample?"""
    answers = {"safe": "unsat", "unsafe": "sat", "undecided": late if result.reason == "timeout" else "unknown"}
    return answers[result.status.value]


def answer_version2(query_file: str, networks: Sequence[str], outputs: Outputs, given: Given, **options: Any) -> int:
    """As VNN-LIB 2.0 has it: one word and, after `sat`, each tensor's declaration and its numbers, one a line."""
    from shakeproof.question import read_specification

    name, equals, model = networks[0].partition("=")
    if len(networks) > 1 or not equals or not model:
        raise InputError(f"--network {' '.join(networks)}: give one, as NAME=FILE")
    specification = read_specification(Path(query_file))
    if specification.network not in (None, name):
        raise InputError(f"{query_file}: declares the network {specification.network!r}, not {name!r}")
    quiet, _, _ = (options.pop(key) for key in ("quiet", "as_json", "strict"))
    if outputs.certificate is not None:
        raise InputError("--certificate is about perturbed images, not about boxes of inputs; leave it out")
    if not (outputs.output is outputs.junit is None):
        raise InputError("verify QUERY.vnnlib --network NAME=FILE takes no --output and no --junit")
    outputs.check()
    settings = settings_from(stop_early=True, whole_curve=False, **options)
    asked = specified(model, [query_file], outputs.plot, given).strictly()
    check_plain(asked)
    screen = Screen(asked.names, as_json=False, quiet=quiet)
    with screen.progress() as advance:
        (answer,) = answered(asked, settings, screen.settle, advance)
    result = answer.result
    say(_verdict(result, "timed-out"))
    if result.status == "unsafe" and result.counterexample is not None:
        found = result.counterexample
        sizes = f"X real [{found.input.size}]", f"Y real [{found.outputs.size}]"
        for declared, side in zip(specification.tensors or sizes, (found.input, found.outputs), strict=True):
            say("\n".join((declared, *(repr(float(value)) for value in side.flatten()))))
    outputs.write(answer, 1, profile=False)
    return exit_code([result.status])
