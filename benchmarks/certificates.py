"""What certificates cost beside the analysis, on one core, both in one run.

    python benchmarks/certificates.py [--data DIR] [--pictures N]

Profiles of GTSRB pictures, then a certificate of each, which the checker has accepted; the ratio should stay below 5.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter

import torch

import shakeproof as sp
from shakeproof.certificate import CERTIFICATE_SECONDS, NoCertificateError, certificate

PERTURBATIONS = ("box-blur:size=3", "box-blur:size=5", "motion-blur:size=9,angle=45")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared"))
    parser.add_argument("--pictures", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = sp.load(given.data / "networks/gtsrb_cnn.onnx")
    pictures = [f"{given.data / 'data/gtsrb_test_first1000.npz'}@{number}" for number in range(given.pictures)]
    print(f"load {os.getloadavg()[0]:.1f}; {given.pictures} pictures each")
    print("| perturbation | certificates | analysis, s | certificates, s | ratio |\n|---|---:|---:|---:|---:|")
    for kernel in PERTURBATIONS:
        began = perf_counter()
        results = sp.profile(network, pictures, kernel)
        analysed, made = perf_counter(), 0
        for result in results:
            try:
                certificate(network, result, profile=True, timeout=CERTIFICATE_SECONDS)
                made += 1
            except NoCertificateError as problem:
                print(problem)
        certified = perf_counter()
        ratio = (certified - analysed) / (analysed - began)
        print(f"| {kernel} | {made} | {analysed - began:.2f} | {certified - analysed:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
