"""Runs in a bottle: makes a virtual environment for a Python workspace; packages come through the proxy.

Usage: python_workspace.py WORKSPACE VENV MARK. Prints what went wrong. Standard library only.
"""

# ruff: noqa: PTH113, PTH118, S603
import os
import shutil
import subprocess
import sys


def run(*command: str) -> int:
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def wanted(workspace: str) -> "list[str]":
    """The requirements that pip is to install."""
    listed = os.path.join(workspace, "requirements.txt")
    if os.path.isfile(listed):
        return ["-r", listed]
    return ["."] if os.path.isfile(os.path.join(workspace, "pyproject.toml")) else []


def main(workspace: str, venv: str, mark: str) -> int:
    name, _, value = mark.partition("=")
    os.environ[name] = value  # so that it can be found and ended
    uv = shutil.which("uv")
    python = shutil.which("python3") or sys.executable
    os.chdir(workspace)
    if uv:
        return run(uv, "venv", "--quiet", "--python", python, venv) or run(
            uv, "pip", "install", "--quiet", "--python", f"{venv}/bin/python", *wanted(workspace)
        )
    made = run(python, "-m", "venv", venv)
    if made:
        sys.stderr.write(
            "No virtual environment could be made. The bottle's image needs uv, or python3-venv.\n"
        )
        return made
    return run(f"{venv}/bin/python", "-m", "pip", "install", "--quiet", "--no-input", *wanted(workspace))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
