from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithMim(build_py):
    """Put what OpenMMLab's tools look for beside a package into the build: ``mmdeploy_lite/.mim``.

    Only the build directory gets it. In a source tree, and so in an editable install, ``mmdeploy_lite.loading`` reads
    ``configs/`` itself: a copy there would go stale.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        mim = Path(self.build_lib, 'mmdeploy_lite', '.mim')
        shutil.rmtree(mim, ignore_errors=True)
        for folder in ('configs', 'tools'):
            shutil.copytree(ROOT / folder, mim / folder, ignore=shutil.ignore_patterns('__pycache__', '*.py[cod]'))
        shutil.copy(ROOT / 'model-index.yml', mim)


def requirements(name: str) -> list[str]:
    """The lines of ``requirements/<name>.txt`` without comments."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text(encoding='utf-8').splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith('#')]


def version() -> str:
    """``__version__``, read and not imported."""
    text = (ROOT / 'mmdeploy_lite' / '__init__.py').read_text(encoding='utf-8')
    return re.search(r"^__version__ = '(.+)'$", text, re.MULTILINE)[1]


def readme() -> str:
    """The README, when there is one."""
    path = ROOT / 'README.md'
    return path.read_text(encoding='utf-8') if path.is_file() else ''


setup(
    name='mmdeploy_lite',
    version=version(),
    description='MMDetection and MMSegmentation models as one checked ONNX file',
    long_description=readme(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    classifiers=[
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
    ],
    packages=find_packages(include=['mmdeploy_lite', 'mmdeploy_lite.*']),
    python_requires='>=3.10',
    install_requires=requirements('base'),
    extras_require={name: requirements(name) for name in ('runtime', 'export', 'openvino')}
    | {'dev': requirements('test')},
    entry_points={'console_scripts': ['mmdeploy-lite = mmdeploy_lite.cli:main']},
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
