"""Networks: readers, the graph, and the runtimes they are compared with."""

from shakeproof.network.agreement import SHARE
from shakeproof.network.claims import with_claims, without_max_pools
from shakeproof.network.deployment import Deployment
from shakeproof.network.graph import Graph, Node, bending_neurons, bending_values, once_for_each
from shakeproof.network.layout import ImageLayout, image_layout
from shakeproof.network.loading import load, load_deployed, model_files, read
from shakeproof.network.network import Deployed, Network, Normalisation
from shakeproof.network.onnx_rules import OPERATORS
from shakeproof.network.reading import Reading, UnsupportedNode
from shakeproof.network.runtimes import Reference, Runtime

__all__ = [
    "OPERATORS",
    "SHARE",
    "Deployed",
    "Deployment",
    "Graph",
    "ImageLayout",
    "Network",
    "Node",
    "Normalisation",
    "Reading",
    "Reference",
    "Runtime",
    "UnsupportedNode",
    "bending_neurons",
    "bending_values",
    "image_layout",
    "load",
    "load_deployed",
    "model_files",
    "once_for_each",
    "read",
    "with_claims",
    "without_max_pools",
]
