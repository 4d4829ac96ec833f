"""Builds the example's device with a fault."""

from setuptools import Extension, setup

import pystreams

setup(
    name="broken_device",
    version="1",
    ext_modules=[
        Extension(
            "broken_device",
            ["broken_device.c"],
            include_dirs=[pystreams.get_include()],
        )
    ],
)
