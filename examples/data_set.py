"""Certify several images against several perturbations in one sweep, and keep the answers as lines of JSON."""

import json

import shakeproof as sp
from shakeproof import demo

network = sp.load(demo.MODEL)
layout = network.picture()
images = [sp.Image(path.name, sp.read_image(str(path)).fitted(layout).pixels, label) for path, label in demo.images()]

queries = [query for text in ("box-blur:size=5", "sharpen:size=5") for query in sp.perturbed(network, images, text)]
lines = [json.dumps(result.to_json()) for result in sp.analyse(network, queries)]

records = [sp.Record.from_json(line) for line in lines]
safe = sum(record.status is sp.Status.SAFE for record in records)
print(f"{safe} of {len(records)} are safe; {sum(record.pieces for record in records)} linear pieces")
