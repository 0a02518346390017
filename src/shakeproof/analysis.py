"""From queries to results: what users hold in their hands, and which method answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

import shakeproof.proof as methods  # each is imported when it is called
from shakeproof.budget import no_progress
from shakeproof.digests import digest, query_digest
from shakeproof.errors import InputError, ShakeproofError, kind_of
from shakeproof.graph import Graph
from shakeproof.model import Deployed, Network, load, load_deployed, stated
from shakeproof.proof import EnumeratedWindow, Reason, Result, Status, SweptWindow, begun_by
from shakeproof.question import (
    LABEL,
    AnyPerturbation,
    Perturbation,
    Picture,
    Query,
    Requirement,
    Specification,
    Strength,
    as_perturbation,
    fitting,
    parse_path,
    perturbed,
    specified,
)
from shakeproof.settings import Method, Options, Settings

if TYPE_CHECKING:
    from shakeproof.proof import Tell

Model = Deployed | str | Path
"""What `load` gave, or a file for it to load."""
Kernel = AnyPerturbation | str
Label = int | str | Sequence[int | None] | NDArray[Any] | torch.Tensor | None
"""A class or its name for all images, or a class for each."""
MOST_NAMED = 4
# Where these are the reasons, the runtime's own answer about 8-bit pictures is another matter.
DECIDED_BY_PICTURES = {*Reason} - {Reason.NOT_FINITE, Reason.RUNTIME_DISAGREES}
Begun = SweptWindow | EnumeratedWindow
W = TypeVar("W", SweptWindow, EnumeratedWindow)


@overload  # a str is a sequence, too, but the first that matches is meant
def profile(  # type: ignore[overload-overlap]
    network: Model,
    image: Picture,
    perturbation: Kernel,
    label: Label = None,
    max_strength: Strength = 1.0,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> Result: ...


@overload
def profile(
    network: Model,
    image: Picture | Sequence[Picture],
    perturbation: Kernel | Sequence[Kernel],
    label: Label = None,
    max_strength: Strength = 1.0,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> list[Result]: ...


def profile(
    network: Model,
    image: Any,
    perturbation: Any,
    label: Label = None,
    max_strength: Strength = 1.0,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> Result | list[Result]:
    """The class at every strength in [0, max_strength] of a perturbation of an image, or where a requirement holds.

    `network` is what `load` gave, or a model file; `image` a picture (channels, height, width), or a file. Without a
    `label`, the image's own or else the class predicted at strength 0 is taken. Of a list of images, of perturbations,
    or of both, there is a list of results: every image under every perturbation. The other arguments are those of
    `Settings`.
    """
    kernels = [parse_path(kernel) for kernel in perturbation] if _is_several(perturbation) else parse_path(perturbation)
    return _answered(network, image, kernels, label, max_strength, Settings(**options), progress, require)


@overload
def verify(  # type: ignore[overload-overlap]
    network: Model,
    image: Picture,
    perturbation: Kernel,
    strength: Strength,
    label: Label = None,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> Result: ...


@overload
def verify(
    network: Model,
    image: Picture | Sequence[Picture],
    perturbation: Kernel | Sequence[Kernel],
    strength: Strength,
    label: Label = None,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> list[Result]: ...


def verify(
    network: Model,
    image: Any,
    perturbation: Any,
    strength: Strength,
    label: Label = None,
    progress: Callable[[float], None] = no_progress,
    require: Requirement | str = LABEL,
    **options: Unpack[Options],
) -> Result | list[Result]:
    """Whether a requirement holds (the label wins, if nothing is said) at every strength in [0, strength]; stops at the
    first confirmed counterexample.

    If a quick probe finds one, all that is known of the critical strength is that it is in (0, counterexample]. Takes
    the same as `profile`, lists included.
    """
    return _answered(network, image, perturbation, label, strength, _early(options), progress, require)


def verify_specification(
    network: Model,
    specification: Specification | str | Path,
    progress: Callable[[float], None] = no_progress,
    **options: Unpack[Options],
) -> Result:
    """Whether a specification, or a VNN-LIB file, has no counterexample. One with a perturbation is `verify`'d."""
    name = "specification" if isinstance(specification, Specification) else str(specification)
    if isinstance(specification, (str, Path)):
        from shakeproof.question import read_specification

        specification = read_specification(Path(specification))
    if not isinstance(specification, Specification):
        raise InputError(f"a specification is a VNN-LIB file, or what was read from one, not {kind_of(specification)}")
    loaded, query = specified(readable(as_network(network)), name, specification)
    return analyse(loaded, [query], _early(options), progress)[0]


def _early(options: Options) -> Settings:
    early: Options = {"stop_early": True}
    return Settings(**(early | options))


def as_network(model: Model, settings: Settings | None = None) -> Deployed:
    """What `load` gave, or now gives for a file; an error that says so of anything else."""
    if isinstance(model, (str, Path)):
        return load(model) if settings is None or settings.pixel_rounding is None else load_deployed(model)
    if isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__}: is a torch module; load it first: load(module, example_input)")
    if not isinstance(model, Deployed):
        raise InputError(f"a network is what load(...) gives, or a model file's name, not {kind_of(model)}")
    return model


def _answered(
    model: Model,
    image: Any,
    perturbation: Any,
    label: Label,
    strength: Strength,
    settings: Settings,
    progress: Callable[[float], None],
    require: Requirement | str,
) -> Result | list[Result]:
    """One result for an image and a perturbation, a list for a list of either: every image under every perturbation."""
    network = as_network(model, settings)
    kernels = [as_perturbation(each) for each in _several(perturbation)]
    with_photographs = any(getattr(kernel, "at_original", False) for kernel in kernels)
    images = [fitting(network, each, with_photographs) for each in _several(image)]
    labels: Any = label.tolist() if isinstance(label, (np.ndarray, np.generic, torch.Tensor)) else label
    if isinstance(labels, (list, tuple)):
        if len(labels) != len(images):
            raise InputError(
                f"there are {len(labels)} labels for {len(images)} images; give one for each, or one label"
            )
        images = [replace(each, label=own_label) for each, own_label in zip(images, labels, strict=True)]
        labels = None
    by_kernel = [perturbed(network, images, kernel, labels, strength, require) for kernel in kernels]
    queries = [query for of_image in zip(*by_kernel, strict=True) for query in of_image]
    results = analyse(network, queries, settings, progress)
    return results if _is_several(image) or _is_several(perturbation) else results[0]


def _several(value: Any) -> Sequence[Any]:
    return value if _is_several(value) else [value]


def _is_several(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def analyse(
    network: Deployed,
    queries: Sequence[Query],
    settings: Settings | None = None,
    progress: Callable[[float], None] = no_progress,
) -> list[Result]:
    """Answer all queries about one network, in order; `progress` gets the share that is done."""
    return list(answers(network, queries, settings, lambda done: progress(done / len(queries))))


def answers(
    network: Deployed,
    queries: Iterable[Query],
    settings: Settings | None = None,
    progress: Callable[[float], None] = no_progress,
    expect: Tell | None = None,
    begun: Callable[[Query], Begun | None] | None = None,
) -> Iterator[Result]:
    """Answer queries about one network, in their order, each as soon as it is known.

    Queries are taken as they are needed, so many at a time that a sweep is worth its while. `progress` is told how many
    are answered, those in work by their share; `expect`, before the pictures of a query are run, how long that takes,
    and then how much is certified. `begun` says what was swept or run for a query before its time was up
    (`proof.begun_by`), so that it goes on from there.
    """
    settings = Settings() if settings is None else settings
    if settings.pixel_rounding is not None:
        before = settings.untested
        for number, query in enumerate(queries):
            window = None if begun is None else _kind_of_window(begun(query), EnumeratedWindow)
            result = methods.answer_by_enumeration(network, query, before, _part(progress, number, 1), expect, window)
            yield _completed(network, result, settings)
        return
    read = readable(network)
    _check_arithmetic(read, settings)
    waiting, done = iter(queries), 0
    while chosen := _fitting_together(waiting, methods.lines_at_once(read)):
        known_windows = [None if begun is None else _kind_of_window(begun(query), SweptWindow) for query in chosen]
        yield from _answered_together(read, chosen, settings, _part(progress, done, 1), known_windows)
        done += len(chosen)


def _fitting_together(waiting: Iterator[Query], most: int) -> list[Query]:
    """The next queries, as many as have so many segments together, at least one."""
    chosen: list[Query] = []
    while most > 0 and (query := next(waiting, None)) is not None:
        chosen.append(query)
        most -= 1 if query.path is None else len(query.path.path.nodes) - 1
    return chosen


def queries_at_once(network: Deployed, settings: Settings) -> int:
    """How many queries about a network are worth handing to `answers` together."""
    if not isinstance(network, Network) or settings.method == "bounds" or settings.pixel_rounding is not None:
        return 1
    return methods.lines_at_once(network) if network.graph.is_piecewise_linear else 1


def _answered_together(
    network: Network,
    queries: Sequence[Query],
    settings: Settings,
    progress: Callable[[float], None],
    begun: Sequence[SweptWindow | None],
) -> Iterator[Result]:
    """Answer some queries in their order: those that can share a sweep in advance, the others as they come.

    Those that share a sweep share its clock as well. Whichever is not answered then goes on with one of its own.
    """
    before = settings.untested
    sweeps: dict[tuple[tuple[float, float] | None, tuple[float, ...], Graph], list[int]] = {}
    for number, query in enumerate(queries):
        if method_for(network, query, settings.method) == "exact" and query.path is not None:
            claim = stated(network, query.obligations[0].property)
            path = query.path.path
            sweeps.setdefault((path.clip, path.nodes, claim.graph_of_cases), []).append(number)
    swept: dict[int, Result] = {}
    for numbers in sweeps.values():
        together = [queries[number] for number in numbers]
        tell = _part(progress, len(swept), len(numbers))
        results = methods.answer_by_sweep(network, together, before, tell, [begun[number] for number in numbers])
        swept.update(zip(numbers, results, strict=True))
    done = len(swept)
    for number, query in enumerate(queries):
        if number not in swept:
            result = methods.answer_by_splitting(network, query, before, _part(progress, done, 1))
            done += 1
        else:
            result = swept.pop(number)
            if result.reason is Reason.TIMEOUT and not any(numbers == [number] for numbers in sweeps.values()):
                window = _kind_of_window(begun_by(result), SweptWindow)
                (result,) = methods.answer_by_sweep(network, [query], before, no_progress, [window])
        yield _completed(network, result, settings)


def _completed(network: Deployed, result: Result, settings: Settings) -> Result:
    """A misclassified answer with the class of the image itself, where the kernel already blurs at strength 0. An
    undecided one with what became of strengths drawn at random; and if that does not decide it, with what the question
    about 8-bit pictures would take, if that can be asked.
    """
    query = result.query
    blurs = isinstance(query.perturbation, Perturbation) and query.perturbation.blurs_at_zero
    if result.status is Status.MISCLASSIFIED and result.record.is_about_label and query.image is not None and blurs:
        (unperturbed,) = network.predicted(network.picture().to_input(query.image.pixels).unsqueeze(0))
        return replace(result, unperturbed=unperturbed)
    if result.status is not Status.UNDECIDED:
        return result
    seed = digest((query_digest(network, query, settings), query.strengths))
    result = methods.tested(network, result, settings, seed)
    if settings.pixel_rounding is None and result.reason in DECIDED_BY_PICTURES and query.parameters == 1:
        with suppress(ShakeproofError):
            return replace(result, as_pictures=methods.expected(network, query, replace(settings, pixels="8bit")))
    return result


def _kind_of_window(begun: Begun | None, kind: type[W]) -> W | None:
    """The earlier partial result, if this method made it."""
    return begun if isinstance(begun, kind) else None


def window_of(network: Deployed, query: Query, settings: Settings, start: float, end: float) -> Begun:
    """Sweep a part of a query's path, or run the pictures that begin there."""
    if settings.pixel_rounding is not None:
        return methods.enumerate_window(network, query, settings, start, end)
    return methods.sweep_window(readable(network), query, settings, start, end)


def joined_windows(network: Deployed, query: Query, settings: Settings, windows: Sequence[Begun]) -> Result:
    """Answer a query from consecutive windows; `window_of` may have made them elsewhere."""
    if settings.pixel_rounding is not None:
        run = [window for window in windows if isinstance(window, EnumeratedWindow)]
        return _completed(network, methods.answer_by_picture_windows(network, query, settings, run), settings)
    swept = [window for window in windows if isinstance(window, SweptWindow)]
    return _completed(network, methods.answer_by_windows(readable(network), query, settings, swept), settings)


def _part(progress: Callable[[float], None], done: int, count: int) -> Callable[[float], None]:
    return lambda share: progress(done + share * count)


def readable(network: Deployed) -> Network:
    """A network whose graph was read; an error for one that can only be run."""
    if not isinstance(network, Network):
        raise InputError(
            f"{network.name}: was loaded with load_deployed, so only 8-bit pictures can be run; use load to analyse it",
            option="pixels",
        )
    return network


def check_applicable(network: Deployed, query: Query, settings: Settings) -> None:
    """Refuse what no method here can answer, before anything is worked out."""
    if settings.pixel_rounding is None:
        read = readable(network)
        _check_arithmetic(read, settings)
        method_for(read, query, settings.method)


def _check_arithmetic(network: Network, settings: Settings) -> None:
    if settings.arithmetic not in arithmetics(network.graph, network.dropped):
        kinds = (*network.graph.unpredictable_operators, *filter(None, [network.dropped]))
        more = f" and {len(kinds) - MOST_NAMED} more" if len(kinds) > MOST_NAMED else ""
        raise InputError(
            f"{network.name}: float32 is not certified where runtimes round in their own ways:"
            f" {', '.join(kinds[:MOST_NAMED])}{more}; ask about real numbers, or about 8-bit pictures, which are run;"
            " batch norms and constants can be folded into the weights by the exporter",
            option="arithmetic",
        )


def arithmetics(graph: Graph, dropped: str | None) -> tuple[str, ...]:
    """What proofs about a network may be about: float32 only if all its operators say that their rounding is fixed, and
    no weight is computed by the runtime. A final softmax, which is otherwise left out, is not fixed either.
    """
    return ("real",) if graph.unpredictable_operators or dropped else ("real", "float32")


def method_for(network: Network, query: Query, wanted: Method) -> str:
    """Exact where it applies, unless something else is asked for; an error where it does not and is."""
    if wanted == "exact":
        if query.path is None:
            raise InputError(f"{query.name}: the exact method takes a path of images, not a box", option="method")
        if query.parameters != 1:
            raise InputError(f"{query.perturbation}: the exact method takes one strength", option="method")
        if kinds := ", ".join(_smooth_operators(network, query)):
            raise InputError(f"{network.name}: has smooth operators ({kinds}), so use bounds", option="method")
    if query.path is None and not all(each.property.is_plain for each in query.obligations):
        raise InputError(f"{query.requirement}: is proved along strengths, not for any kernel; leave any-kernel out")
    method = wanted
    if wanted == "auto":
        method = "bounds" if query.parameters != 1 or _smooth_operators(network, query) else "exact"
    if method == "bounds" and query.path is not None and query.path.path.is_chain:
        raise InputError(
            f"{query.perturbation}: is a chain of segments, for which there is the exact method alone;"
            f" {network.name} would need bounds"
        )
    return method


def _smooth_operators(network: Network, query: Query) -> tuple[str, ...]:
    """The smooth operators in front of the scores that a query's property uses."""
    return stated(network, query.obligations[0].property).graph.smooth_operators
