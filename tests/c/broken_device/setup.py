"""Builds the example's device with a fault, and with gates."""

from setuptools import Extension, setup

import pystreams

setup(
    name="broken_device",
    version="1",
    ext_modules=[
        Extension(
            name,
            [f"{name}.c"],
            include_dirs=[pystreams.get_include()],
        )
        for name in ("broken_device", "gated_device")
    ],
)
