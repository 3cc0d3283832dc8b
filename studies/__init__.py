"""Studies that measure claims about attention. Run one with `python -m studies NAME`; `--list` lists them.

Every module of this package is a study and defines `main(arguments) -> int`, which returns an exit status. The first
line of its docstring is its description in `--list`. Studies need no registration. Results are written to
out/studies/NAME. A module with a `NUMBER` measures a claim; `python -m studies all` runs these in the order of their
numbers. docs/studies.md lists the claims, their sources and the results.
"""
