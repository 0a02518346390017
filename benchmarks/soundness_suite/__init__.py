"""Queries whose answers are known: networks made to fool verifiers, and the truth about them in rational arithmetic.

Nothing here knows the package: only numpy and onnx are needed, so the suite can be run on any tool.
"""
