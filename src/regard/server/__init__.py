"""The server of `regard view`: numbers and tiles of maps to the page, from this machine to this machine.

target   what is shown: a capture, a run, a model          heads   a head's numbers, in bands that can be stopped
guard    who may ask, and for how much                     tiles   numbers → pixels → PNG
work     a few threads, tickets, time limits, the cache    page    the built page, held in memory
app      the routes
"""
