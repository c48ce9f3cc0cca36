"""`python -m jit_passes` is the command `jit-passes`."""

from .command_line import run

if __name__ == "__main__":
    run()
