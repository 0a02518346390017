"""Networks: readers, the graph, and the reference runtime they are compared with."""

from shakeproof.network.graph import Graph, Node
from shakeproof.network.layout import ImageLayout
from shakeproof.network.network import Network, Reference, load

__all__ = ["Graph", "ImageLayout", "Network", "Node", "Reference", "load"]
