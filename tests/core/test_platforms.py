"""The package works without the modules and functions that only Unix has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
"""Modules that Windows does not have."""
PREPARE = f"""
import ctypes, os, pkgutil, selectors, shutil, sys
import babel, h11, matplotlib.pyplot, PIL.Image, rich, sacrebleu, safetensors, starlette, tokenizers, torch, uvicorn
import torch._dynamo, uvicorn.protocols.http.h11_impl  # other packages check the platform, so they are imported first

sys.modules.update(dict.fromkeys({BLOCKED}))
del selectors.PollSelector, selectors.EpollSelector
library, open_file = ctypes.CDLL, os.open

def load(name, *arguments, **options):
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return library(name, *arguments, **options)

def open_on_windows(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied")
    return open_file(path, *arguments, **options)

ctypes.CDLL, os.open = load, open_on_windows
shutil._use_fd_functions = False  # rmtree on Windows does not open folders
"""


SCRIPT = """
import importlib, regard
names = [module.name for module in pkgutil.walk_packages(regard.__path__, "regard.")]
others = ("regard.__main__", "regard._native", "regard.huggingface")
for name in names:
    if name not in others:
        importlib.import_module(name)
from regard.server import connection
print(len(names) > 150, connection.Poller.__name__)

from pathlib import Path
from regard.core import files, process
folder = Path(sys.argv[1])
for text in ("first", "second"):
    files.write_text(folder / "a.txt", text)
    files.write_folder(folder / "b", {"c.txt": text.encode()})
with files.exclusive_lock(folder / "d"):
    pass
from regard.training.run_folder import Run
run = Run(folder / "run")
run.close()
print((folder / "a.txt").read_text(), (folder / "b/c.txt").read_text())
print(process.keep_freed(), process.limit_arenas(2), process.release_freed())
print(sorted(path.name for path in folder.iterdir()))
"""


def test_every_module_can_be_imported_and_files_are_written_and_folders_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PREPARE + SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imports, *written = done.stdout.splitlines()
    assert imports == "True SelectSelector"
    assert written == ["second second", "False False False", "['a.txt', 'b', 'd', 'run']"]
