"""Networks: readers, the graph, and the runtimes they are compared with."""

from shakeproof.model.comparison import SHARE, Comparison, Floats, telling
from shakeproof.model.loading import load, load_deployed, pictures_for, read, read_images
from shakeproof.model.model_file import model_files
from shakeproof.model.network import Deployed, Network
from shakeproof.model.onnx_reader import OPERATORS, Reading
from shakeproof.model.required import Stated, stated, with_cases
from shakeproof.model.rewriting import with_claims, without_max_pools
from shakeproof.model.runtimes import Deployment, Runtime
