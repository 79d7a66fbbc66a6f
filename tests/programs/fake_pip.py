"""An emulation of pip for the tests of `tfdist horovod install`.

`download` creates a source. `wheel` compiles two files, one at a time. `install` unpacks a wheel,
and `uninstall` removes the package. With CUT set, `wheel` kills the process that called it after
the first file that it compiles. The file CALLS gets a line per command and per compiled file.
"""

import io
import os
import shutil
import signal
import sys
import sysconfig
import tarfile
from pathlib import Path

_PACKAGE = Path(sysconfig.get_path("purelib")) / "horovod"


def main(words: list[str]) -> None:
    """Runs the command that is the first word without a dash."""
    command = next(word for word in words if not word.startswith("-"))
    _record(command)
    if command == "download":
        _download(Path(words[words.index("--dest") + 1]))
    elif command == "wheel":
        _make_wheel(Path(words[-1]), Path(words[words.index("--wheel-dir") + 1]))
    elif command == "install":
        _install(next(Path(word) for word in words if word.endswith(".whl")))
    elif command == "uninstall":
        shutil.rmtree(_PACKAGE)


def _record(line: str) -> None:
    with open(os.environ["CALLS"], "a") as file:
        print(line, file=file)


def _download(folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as file:
        file.addfile(tarfile.TarInfo("horovod-0.28.1/setup.py"), io.BytesIO())


def _make_wheel(source: Path, folder: Path) -> None:
    assert (source / "setup.py").is_file()
    assert (Path(os.environ["HOROVOD_CMAKE"]).parent / "environment").is_dir()
    for number in (1, 2):
        compiled = source / f"{number}.o"
        if not compiled.exists():
            compiled.touch()
            _record(f"compiled {number}")
        if os.environ.get("CUT"):
            os.kill(os.getppid(), signal.SIGKILL)
            sys.exit()
    folder.mkdir()
    works = os.environ.get("WORKS", "True")
    wheel = folder / "horovod-0.28.1-none-any.whl"
    wheel.write_text(
        f"import sys\nprint('a warning', file=sys.stderr)\nmpi_built = gloo_built = lambda: {works}"
    )


def _install(wheel: Path) -> None:
    _PACKAGE.mkdir(exist_ok=True)
    (_PACKAGE / "__init__.py").touch()
    (_PACKAGE / "tensorflow.py").write_text(wheel.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
