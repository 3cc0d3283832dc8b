"""Benchmarks of regard: `python -m bench NAME`, `python -m bench --list`.

Every module of this package is a benchmark, except the helpers (`harness`, `memory`, `parity`, `peers`, `report`,
`__main__`) and names that begin with an underscore. A benchmark offers one or both of:

    def cases(options: Options) -> Iterable[Case]        # timed, ours against a peer
    def figures(options: Options) -> Iterable[Figure]    # any other number, such as peak memory

and may say what follows from all of it, once they are measured:

    def conclude(results: Sequence[Result], options: Options) -> str

Write both as generators: a case is then built when its turn comes and released before the next, and Ctrl-C keeps what
was measured. The first line of the module's docstring is its description in `--list`. There is nothing to register.

How a case is measured is in `bench.harness`, how memory is in `bench.memory`.
"""
