"""Benchmarks of regard. `python -m bench NAME` runs one, `python -m bench all` runs all, `--list` lists them.

Every module of this package is a benchmark, except the helpers (`harness`, `memory`, `parity`, `peers`, `report`,
`__main__`) and modules whose name begins with an underscore. A benchmark defines one or both of:

    def cases(options: Options) -> Iterable[Case]        # timed comparisons of ours with a peer
    def figures(options: Options) -> Iterable[Figure]    # any other number, such as peak memory

It may also define a summary, which is printed after everything has been measured:

    def conclude(results: Sequence[Result], options: Options) -> str

Write `cases` and `figures` as generators. Each case is then built just before it is measured and released before the
next one, and Ctrl-C keeps the results so far. The first line of the module's docstring is its description in `--list`.
Benchmarks need no registration.

`bench.harness` describes how time is measured, `bench.memory` how memory is measured.
"""
