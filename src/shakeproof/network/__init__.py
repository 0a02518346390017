"""Networks: readers, the graph, and the runtimes they are compared with."""

from shakeproof.network.agreement import SHARE
from shakeproof.network.claims import with_claims, without_max_pools
from shakeproof.network.deployment import Deployment
from shakeproof.network.graph import Graph, Node, bending_neurons, bending_values, once_for_each
from shakeproof.network.loading import load, load_deployed, model_files, read
from shakeproof.network.network import Deployed, Network, Normalisation
from shakeproof.network.onnx_rules import OPERATORS
from shakeproof.network.pictures import pictures_for, read_images
from shakeproof.network.reading import Reading, UnsupportedNode
from shakeproof.network.runtimes import Reference, Runtime

__all__ = [
    "OPERATORS",
    "SHARE",
    "Deployed",
    "Deployment",
    "Graph",
    "Network",
    "Node",
    "Normalisation",
    "Reading",
    "Reference",
    "Runtime",
    "UnsupportedNode",
    "bending_neurons",
    "bending_values",
    "load",
    "load_deployed",
    "model_files",
    "once_for_each",
    "pictures_for",
    "read",
    "read_images",
    "with_claims",
    "without_max_pools",
]
