"""Builds the backend; pystreams.get_include() returns the headers' folder."""

from setuptools import Extension, setup

import pystreams

setup(
    name="fake_device",
    version="1",
    ext_modules=[
        Extension(
            "fake_device",
            ["fake_device.c"],
            include_dirs=[pystreams.get_include()],
        )
    ],
)
