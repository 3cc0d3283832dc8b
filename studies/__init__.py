"""Studies: what was claimed of attention, measured. `python -m studies NAME`, `python -m studies --list`.

Every module of this package is a study and offers `main(arguments) -> int`, an exit status; the first line of its
docstring is its description in `--list`. There is nothing to register. Results go to out/studies/NAME. A module that
has `NUMBER` measures a claim: `python -m studies all` runs those in the order of their numbers.
"""
