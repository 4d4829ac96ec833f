"""Builds the backend; pystreams.get_include() returns the headers' folder."""

from setuptools import Extension, setup

import pystreams

setup(
    name="fake_device",
    version="1",
    # The names that PYSTREAMS_ACCELERATOR and device strings may use.
    entry_points={
        "pystreams.backends": ["mtia = fake_device", "toy = fake_device"]
    },
    ext_modules=[
        Extension(
            "fake_device",
            ["fake_device.c"],
            include_dirs=[pystreams.get_include()],
        )
    ],
)
